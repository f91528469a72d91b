// SPDX-License-Identifier: BSD-3-Clause
// Parameters of wm_copy_announce: one block copies bytes and then writes a
// word that another process watches. Shared by C and CUDA.
#ifndef WM_KERNELS_ANNOUNCE_H
#define WM_KERNELS_ANNOUNCE_H

#include <stdint.h>

typedef struct {
    char *dst;
    const char *src;
    uint64_t nbytes;
    uint32_t *word; // page-locked host memory
    uint32_t value;
    uint32_t unit; // 16, 4 or 1: divides both addresses and nbytes
} wm_announce_params_t;

#endif
