// SPDX-License-Identifier: BSD-3-Clause
// The kernels of each device, loaded once for each device, and the launchers
// of the copy and fill kernels. The build makes an image of each file of
// src/kernels. Any thread; no GIL.
#ifndef WM_ARRAY_KERNELS_H
#define WM_ARRAY_KERNELS_H

#include "array/layout.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"

// The version of CUDA that compiled the kernels, such as 13000. A driver of an
// older major version cannot load them.
extern const int wm_kernels_cuda;

// The code that the kernels are compiled to, such as "sm_80 sm_90 PTX".
extern const char wm_kernels_codes[];

// Families of kernels: X(FAMILY, file of src/kernels, prefix of the names,
// rows: the rest of the names)
#define WM_KERNEL_FAMILIES(X)                                                 \
    X(COPY, "copy", "wm_", COPY_ROWS)                                         \
    X(PULL, "pull", "wm_pull", FEW_ROWS)                                      \
    X(PORT, "port", "wm_port", FEW_ROWS)                                      \
    X(EAGER_LL, "eager_ll", "wm_mail", PAIR_ROWS)                             \
    X(EAGER_LL_WIDE, "eager_ll", "wm_mail_wide", ONE_ROW)                     \
    X(HALO, "halo", "wm_halo", HALO_ROWS)                                     \
    X(PEER, "peer_signal", "wm_peer_", PEER_ROWS)                             \
    X(REDUCE, "reduce", "wm_reduce_", REDUCE_ROWS)                            \
    X(FUSED, "reduce", "wm_fused_", REDUCE_ROWS)                              \
    X(ATOMIC, "atomic", "wm_atomic_", REDUCE_ROWS)                            \
    X(LL, "ll", "wm_ll_", MOVE_ROWS)                                          \
    X(LL128, "ll128", "wm_ll128_", MOVE_ROWS)                                 \
    X(LL128_PARTS, "ll128", "wm_ll128_parts_", REDUCE_ROWS)                   \
    X(SIMPLE, "simple", "wm_simple_", MOVE_ROWS)                              \
    X(SIMPLE_ALL, "simple", "wm_simple_all_", REDUCE_ROWS)

typedef enum {
#define X(FAMILY, ...) WM_KERNELS_##FAMILY,
    WM_KERNEL_FAMILIES(X)
#undef X
        WM_KERNEL_FAMILY_COUNT,
} wm_kernel_family_t;

// Rows of reductions, and the copies (`move`) that some have; of PULL, PORT
// and EAGER_LL; of HALO; of PEER.
enum {
#define X(name, ...) WM_KERNEL_##name,
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
        WM_KERNEL_move,
    WM_KERNEL_ROWS, // at most
    WM_KERNEL_REDUCTIONS = WM_KERNEL_move,
};
enum { WM_KERNEL_FEW, WM_KERNEL_MANY };
enum { WM_KERNEL_LINES, WM_KERNEL_COPIES };
enum { WM_KERNEL_SIGNAL, WM_KERNEL_WAIT, WM_KERNEL_BARRIER };

// Finds the kernels of a family; idempotent. May wait for the device. The
// first call loads the modules of all files, so that nothing is loaded later,
// during a capture.
WM_MUST_CHECK int
wm_kernels_prepare(int device, wm_kernel_family_t family, wm_error_t *err);

// Launches the kernel of a row (WM_KERNEL_...) on the device, with one struct
// of parameters. The family is prepared.
WM_MUST_CHECK int
wm_kernels_launch(int device, wm_kernel_family_t family, int row,
                  uint32_t blocks, uint32_t threads, void *params,
                  CUstream stream, wm_error_t *err);

// Fills what a kernel needs to divide by a number fast.
void
wm_kernels_divisor(wm_divisor_t *divisor, uint32_t by);

// Enqueue the strided copy, or fill every element at dst with the `itemsize`
// bytes at `value`. `device` can reach both sides.
WM_MUST_CHECK int
wm_kernels_copy(const wm_layout_t *layout, int device, CUstream stream,
                wm_error_t *err);

WM_MUST_CHECK int
wm_kernels_fill(const wm_layout_t *layout, const void *value, size_t itemsize,
                int device, CUstream stream, wm_error_t *err);

#endif
