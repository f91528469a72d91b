// SPDX-License-Identifier: BSD-3-Clause
// Reductions that share a kernel. One thread at a time; no GIL.
#ifndef WM_ARRAY_FUSED_H
#define WM_ARRAY_FUSED_H

#include "array/reduce.h"

// Empty where `params.count` is 0.
typedef struct {
    int kernel;
    uint64_t blocks[WM_FUSED_PARTS]; // that each part could use
    wm_fused_params_t params;
} wm_fused_t;

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_fused_prepare(int device, wm_error_t *err);

// Adds one, whose signal does not matter; false where it is none that these
// can share a kernel with, or has no kernel that computes.
bool
wm_fused_add(wm_fused_t *fused, const wm_reduction_t *reduction);

// Enqueues the kernel of what was added, and empties it, after an error as
// well.
WM_MUST_CHECK int
wm_fused_launch(int device, wm_fused_t *fused, const wm_signal_t *signal,
                CUstream stream, wm_error_t *err);

#endif
