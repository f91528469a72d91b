// SPDX-License-Identifier: BSD-3-Clause
// Copies by a kernel (kernels/pull.h): many short ones in one kernel, or a
// long one that runs beside others. Any thread; no GIL.
#ifndef WM_ARRAY_PULL_H
#define WM_ARRAY_PULL_H

#include <stdbool.h>

#include "cuda/device.h"
#include "kernels/pull.h"

// Loads the kernel, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_pull_prepare(int device, wm_error_t *err);

// Returns true if a kernel is not slower than a copy engine for this copy.
bool
wm_pull_serves(const wm_pull_t *pull);

// Enqueues one kernel for 1 to WM_PULLS copies. Fills their units and the
// number of blocks of each copy: one block if any copy has a `taken` word.
WM_MUST_CHECK int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err);

// Enqueues one long copy, with so few blocks that others can run beside it.
WM_MUST_CHECK int
wm_pull_launch_long(int device, const wm_pull_t *pull, CUstream stream,
                    wm_error_t *err);

#endif
