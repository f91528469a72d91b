// SPDX-License-Identifier: BSD-3-Clause
// Locks, and what else a caller may hold, whose layer is not known here:
// Python's GIL. Whoever waits for the device, or for a lock under which the
// driver is called, must not hold it: others may need it to go on, and tools
// (compute-sanitizer, nsys) take it inside the driver.
#ifndef WM_CUDA_LOCK_H
#define WM_CUDA_LOCK_H

#include <pthread.h>
#include <stdbool.h>

// Set once, before any use; until then nothing is held. `is_alive`: whether
// the interpreter is, which may end before MPI and threads of the program do.
void
wm_lock_set_holder(void *(*let_go)(void), void (*take_back)(void *held),
                   bool (*is_alive)(void));

// Whether there is a program that a thread of its own can return to.
bool
wm_holder_is_alive(void);

// Gives what wm_take_back is to have: NULL where nothing was held.
void *
wm_let_go(void);

void
wm_take_back(void *held);

// How every lock is taken. Who must wait for it lets go of the GIL meanwhile,
// so this may run other Python code.
void
wm_lock(pthread_mutex_t *mutex);

#endif
