// SPDX-License-Identifier: BSD-3-Clause
// Threads that free memory. The driver then waits until the GPU is idle, and
// launches nothing meanwhile. So a thread counts itself first, and asks then
// if a stream waits for other processes (wm_memory_would_wait). Who launches
// work that waits for them counts this for that question first, and looks then
// if a thread frees memory: one of both sees the other. Any locks.
#ifndef WM_CUDA_FREEING_H
#define WM_CUDA_FREEING_H

#include <stdbool.h>

void
wm_freeing_begin(void);
void
wm_freeing_end(void);

bool
wm_freeing_any(void);

#endif
