// SPDX-License-Identifier: BSD-3-Clause
// Copies out of memory that the device reaches. Short ones are many in one
// kernel: a launch and an engine's start cost more than their bytes. Shared by
// C and CUDA.
#ifndef WM_KERNELS_PULL_H
#define WM_KERNELS_PULL_H

#include <stdint.h>

#include "kernels/signal.h"

#define WM_PULLS 64    // so many share a kernel
#define WM_FEW_PULLS 4 // with little to hand over

// Some blocks copy. One alone writes *taken behind it, unless that is NULL.
typedef struct {
    char *dst;
    const char *src;
    uint64_t nbytes;
    uint32_t *taken; // page-locked host memory
    uint32_t taken_value;
    uint32_t unit; // 16, 4 or 1: divides both addresses
} wm_pull_t;

typedef struct {
    uint32_t count;
    uint32_t width; // blocks of each; 0: they share one
    wm_signal_t signal;
    wm_pull_t pulls[WM_PULLS];
} wm_pull_params_t;

// wm_pull_few: it begins as that does.
typedef struct {
    uint32_t count;
    uint32_t width;
    wm_signal_t signal;
    wm_pull_t pulls[WM_FEW_PULLS];
} wm_pull_few_params_t;

#endif
