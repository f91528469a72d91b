// SPDX-License-Identifier: BSD-3-Clause
// Copies of short messages, many in one kernel (kernels/pull.h). Any thread;
// no GIL.
#ifndef WM_ARRAY_PULL_H
#define WM_ARRAY_PULL_H

#include "cuda/device.h"
#include "kernels/pull.h"

// Loads the kernel, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_pull_prepare(int device, wm_error_t *err);

// Enqueues one kernel for up to WM_PULLS copies; their units are found here.
WM_MUST_CHECK int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err);

#endif
