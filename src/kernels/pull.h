// SPDX-License-Identifier: BSD-3-Clause
// Short messages out of memory that the device reaches, many in one kernel: a
// launch and an engine's start cost more than their bytes. Shared by C and
// CUDA.
#ifndef WM_KERNELS_PULL_H
#define WM_KERNELS_PULL_H

#include <stdint.h>

#define WM_PULLS 64 // so many share a kernel, a block each

// A block copies, then writes *taken.
typedef struct {
    char *dst;
    const char *src;
    uint64_t nbytes;
    uint32_t *taken; // page-locked host memory
    uint32_t taken_value;
    uint32_t unit; // 16, 4 or 1: divides both addresses and nbytes
} wm_pull_t;

typedef struct {
    wm_pull_t pulls[WM_PULLS];
    uint32_t count;
} wm_pull_params_t;

#endif
