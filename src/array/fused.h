// SPDX-License-Identifier: BSD-3-Clause
// Reductions that share a kernel. One thread at a time; no GIL.
#ifndef WM_ARRAY_FUSED_H
#define WM_ARRAY_FUSED_H

#include "array/reduce.h"

// Reductions that one kernel will do; none if `params.count` is 0.
typedef struct {
    int kernel;
    uint64_t blocks[WM_FUSED_PARTS]; // how many each reduction could use
    wm_fused_params_t params;
} wm_fused_t;

// Adds a reduction, without its signal. Returns false if the reduction cannot
// share a kernel with those added before, or needs no computing kernel.
bool
wm_fused_add(wm_fused_t *fused, const wm_reduction_t *reduction);

// Enqueues one kernel (WM_KERNELS_FUSED, which is prepared) for the reductions
// that were added. Then, and after an
// error too, `fused` is empty.
WM_MUST_CHECK int
wm_fused_launch(int device, wm_fused_t *fused, const wm_signal_t *signal,
                CUstream stream, wm_error_t *err);

#endif
