// SPDX-License-Identifier: BSD-3-Clause
// Locks, and the lock of a higher layer that callers may hold: Python's GIL. A
// thread that waits for the device, or for a lock under which the driver is
// called, must not hold the GIL: other threads may need it to go on, and tools
// (compute-sanitizer, nsys) take it inside the driver.
#ifndef WM_CUDA_LOCK_H
#define WM_CUDA_LOCK_H

#include <pthread.h>
#include <stdbool.h>

// Sets the functions that release and take the GIL; called once, before any
// use. Without them nothing is held. `is_alive` returns false once the
// interpreter has ended, which may be before MPI and threads of the program
// end.
void
wm_lock_set_holder(void *(*let_go)(void), void (*take_back)(void *held),
                   bool (*is_alive)(void));

// Returns true if the interpreter is alive, so that a thread can return to its
// program.
bool
wm_holder_is_alive(void);

// Releases the GIL. Returns a value for wm_gil_retake, NULL if the GIL was not
// held.
void *
wm_gil_release(void);

// Takes the GIL again. Does nothing if `held` is NULL.
void
wm_gil_retake(void *held);

// Takes a lock; every lock of the library is taken by this function. If the
// thread must wait, it releases the GIL meanwhile, so other Python code may
// run.
void
wm_lock(pthread_mutex_t *mutex);

// Starts a thread that runs run(context), which the caller joins; `joined`
// NULL: a detached one. Signals go to the program's threads, not to this one.
// Returns false if there is no thread.
bool
wm_thread_start(void *(*run)(void *), void *context, pthread_t *joined);

#endif
