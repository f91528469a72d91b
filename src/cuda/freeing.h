// SPDX-License-Identifier: BSD-3-Clause
// Counts threads that free memory: the driver then waits until the GPU is
// idle, and launches nothing. A thread that frees begins here, and then asks
// wm_memory_would_wait(). A thread that launches work that waits for other
// processes first makes that answer true, and then asks wm_freeing_any(). So
// at least one of the two sees the other, and steps back. Any thread, any
// locks.
#ifndef WM_CUDA_FREEING_H
#define WM_CUDA_FREEING_H

#include <stdbool.h>

// A thread that takes longer waits for work of the program, microseconds. That
// work may wait for who waits for this thread: then nobody does any longer.
#define WM_FREEING_US 5000000

void
wm_freeing_begin(void);
void
wm_freeing_end(void);

bool
wm_freeing_any(void);

#endif
