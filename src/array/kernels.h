// SPDX-License-Identifier: BSD-3-Clause
// The kernels of each device, loaded once for each device, and the launchers
// of the copy and fill kernels. The build makes an image of each file of
// src/kernels. Any thread; no GIL.
#ifndef WM_ARRAY_KERNELS_H
#define WM_ARRAY_KERNELS_H

#include "array/layout.h"
#include "kernels/reduce.h"

// The version of CUDA that compiled the kernels, such as 13000. A driver of an
// older major version cannot load them.
extern const int wm_kernels_cuda;

// Loads all kernels on `device`, a module for each file, so that nothing is
// loaded later, during a capture; idempotent.
WM_MUST_CHECK int
wm_kernels_load(int device, wm_error_t *err);

// Finds a kernel of `file`, the name of a file of src/kernels; loads the
// kernels if need be.
WM_MUST_CHECK int
wm_kernels_find(int device, const char *file, const char *name,
                CUfunction *function, wm_error_t *err);

// Families of kernels, each with one for every row of WM_REDUCE_KERNEL_ROWS:
// X(FAMILY, file, prefix of the names, true if there is a `<prefix>move`,
// which copies)
#define WM_KERNEL_FAMILIES(X)                                                 \
    X(REDUCE, "reduce", "wm_reduce_", false)                                  \
    X(FUSED, "reduce", "wm_fused_", false)                                    \
    X(ATOMIC, "atomic", "wm_atomic_", false)                                  \
    X(LL, "ll", "wm_ll_", true)                                               \
    X(LL128, "ll128", "wm_ll128_", true)                                      \
    X(LL128_PARTS, "ll128", "wm_ll128_parts_", false)                         \
    X(SIMPLE, "simple", "wm_simple_", true)                                   \
    X(SIMPLE_ALL, "simple", "wm_simple_all_", false)

typedef enum {
#define X(FAMILY, ...) WM_KERNELS_##FAMILY,
    WM_KERNEL_FAMILIES(X)
#undef X
        WM_KERNEL_FAMILY_COUNT,
} wm_kernel_family_t;

enum {
#define X(name, ...) WM_KERNEL_##name,
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
        WM_KERNEL_move,
    WM_KERNEL_ROWS,
    WM_KERNEL_REDUCTIONS = WM_KERNEL_move,
};

// Finds the kernels of a family; idempotent. May wait for the device.
WM_MUST_CHECK int
wm_kernels_prepare(int device, wm_kernel_family_t family, wm_error_t *err);

// Launches a kernel on the device, with one struct of parameters.
WM_MUST_CHECK int
wm_kernels_launch_function(int device, CUfunction function, uint32_t blocks,
                           uint32_t threads, void *params, CUstream stream,
                           wm_error_t *err);

// Launches the kernel of a row (WM_KERNEL_...). The family is prepared.
WM_MUST_CHECK int
wm_kernels_launch(int device, wm_kernel_family_t family, int row,
                  uint32_t blocks, uint32_t threads, void *params,
                  CUstream stream, wm_error_t *err);

// Enqueue the strided copy, or fill every element at dst with the `itemsize`
// bytes at `value`. `device` can reach both sides.
WM_MUST_CHECK int
wm_kernels_copy(const wm_layout_t *layout, int device, CUstream stream,
                wm_error_t *err);

WM_MUST_CHECK int
wm_kernels_fill(const wm_layout_t *layout, const void *value, size_t itemsize,
                int device, CUstream stream, wm_error_t *err);

#endif
