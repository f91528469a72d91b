// SPDX-License-Identifier: BSD-3-Clause
// How a kernel tells the host that it has ended: by a word, which is there
// some microseconds before the stream is known to be idle. Shared by C and
// CUDA.
#ifndef WM_KERNELS_SIGNAL_H
#define WM_KERNELS_SIGNAL_H

#include <stdint.h>

#define WM_SIGNALS 64

// No two kernels at a time have the same `index`.
typedef struct {
    uint32_t *word; // page-locked host memory; NULL: nobody looks at it
    uint32_t value; // that it is to have
    uint32_t index; // below WM_SIGNALS
} wm_signal_t;

#ifdef __cplusplus
#include "kernels/kernel.h"

#ifdef __CUDACC__
// Blocks that have come to their end, of each device.
static __device__ uint32_t wm_signal_blocks[WM_SIGNALS];

// As wm_grid_ended(), and what all threads wrote is visible to the whole
// system: of each block, before it is counted.
WM_DEVICE bool
wm_grid_visible(uint32_t *ended)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    __threadfence_system();
    if (gridDim.x == 1)
        return true;
    if (atomicAdd(ended, 1) + 1 < gridDim.x)
        return false;
    *ended = 0;
    return true;
}
#else
static uint32_t wm_signal_blocks[WM_SIGNALS];

WM_DEVICE bool
wm_grid_visible(uint32_t *ended)
{
    return wm_grid_ended(ended);
}
#endif

// Every thread comes here last.
WM_DEVICE void
wm_signal_end(const wm_signal_t &signal)
{
    if (signal.word != nullptr
        && wm_grid_visible(&wm_signal_blocks[signal.index]))
        wm_store_system(signal.word, signal.value);
}
#endif
#endif
