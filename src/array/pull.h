// SPDX-License-Identifier: BSD-3-Clause
// Copies by a kernel (kernels/pull.h): many short ones in one, or a long one
// beside others. Any thread; no GIL.
#ifndef WM_ARRAY_PULL_H
#define WM_ARRAY_PULL_H

#include <stdbool.h>

#include "cuda/device.h"
#include "kernels/pull.h"

// Loads the kernel, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_pull_prepare(int device, wm_error_t *err);

// Whether such a copy is no slower than a copy engine's.
bool
wm_pull_serves(const wm_pull_t *pull);

// Enqueues one kernel for 1 to WM_PULLS copies; their units are found here,
// and how many blocks each has: one, where they tell that they were taken.
WM_MUST_CHECK int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err);

// Enqueues one long copy, by as few blocks as leave room for others beside it.
WM_MUST_CHECK int
wm_pull_launch_long(int device, const wm_pull_t *pull, CUstream stream,
                    wm_error_t *err);

#endif
