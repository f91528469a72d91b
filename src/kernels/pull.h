// SPDX-License-Identifier: BSD-3-Clause
// Copies from memory that the device reaches. One kernel does many short
// copies: a launch, or the start of a copy engine, costs more than their
// bytes. Shared by C and CUDA.
#ifndef WM_KERNELS_PULL_H
#define WM_KERNELS_PULL_H

#include <stdint.h>

#include "kernels/signal.h"

#define WM_PULLS 64    // most copies in a kernel
#define WM_FEW_PULLS 4 // most in wm_pull_few, which has few parameters

// One copy, by one block or more. With `taken`, one block copies, and then
// writes *taken.
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
    uint32_t width; // blocks of each copy; 0: all share one block
    wm_signal_t signal;
    wm_pull_t pulls[WM_PULLS];
} wm_pull_params_t;

// Parameters of wm_pull_few: like those of wm_pull, with fewer copies.
typedef struct {
    uint32_t count;
    uint32_t width;
    wm_signal_t signal;
    wm_pull_t pulls[WM_FEW_PULLS];
} wm_pull_few_params_t;

#endif
