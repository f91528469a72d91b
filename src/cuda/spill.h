// SPDX-License-Identifier: BSD-3-Clause
// Blocks of a GPU whose memory is page-locked host memory, for a rank whose
// GPU is full while others wait for it. Kernels and copies reach them as they
// reach the GPU's memory, but by PCIe.
#ifndef WM_CUDA_SPILL_H
#define WM_CUDA_SPILL_H

#include "cuda/memory.h"

// Allocates such a block, which is used and freed as any other, and is
// described as memory of the device that cannot be exported.
WM_MUST_CHECK int
wm_block_spill(int device, size_t size, wm_block_t **block, wm_error_t *err);

// Frees page-locked memory without a driver call. Any locks of this layer.
void
wm_pinned_put(void *ptr);

#endif
