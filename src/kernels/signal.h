// SPDX-License-Identifier: BSD-3-Clause
// Signals: a kernel writes a word for the host when it has ended, some
// microseconds before the stream is known to be idle. Shared by C and CUDA.
#ifndef WM_KERNELS_SIGNAL_H
#define WM_KERNELS_SIGNAL_H

#include <stdint.h>

#define WM_SIGNALS 64

// Kernels that run at the same time have different `index`.
typedef struct {
    uint32_t *word; // page-locked host memory; NULL: no signal
    uint32_t value; // the value to write
    uint32_t index; // below WM_SIGNALS
} wm_signal_t;

#ifdef __cplusplus
#include "kernels/kernel.h"

#ifdef __CUDACC__
// Blocks that have ended, for each signal; on each device.
static __device__ uint32_t wm_signal_blocks[WM_SIGNALS];

// Like wm_grid_ended(); in addition, all writes of all threads are visible to
// the whole system: each block fences before it is counted.
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

// Called last by every thread.
WM_DEVICE void
wm_signal_end(const wm_signal_t &signal)
{
    if (signal.word != nullptr
        && wm_grid_visible(&wm_signal_blocks[signal.index]))
        wm_store_system(signal.word, signal.value);
}
#endif
#endif
