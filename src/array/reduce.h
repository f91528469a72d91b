// SPDX-License-Identifier: BSD-3-Clause
// Reductions: dst[i] = src[0][i] op src[1][i] op ..., i < count, in that order
// whatever the grid, so that the same sources give the same bits; of one
// source a copy. dst may be one of the sources, and overlaps none otherwise.
// Integers wrap around. float16 and bfloat16 are computed in float32 and
// rounded once; MIN and MAX of what has a NaN are NaN; of equals MINLOC and
// MAXLOC have the lower index. Any thread; no GIL.
#ifndef WM_ARRAY_REDUCE_H
#define WM_ARRAY_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/device.h"
#include "kernels/reduce.h"

// Whether MPI has the operation for these elements, or its like: for float16
// and bfloat16 what it has for float32. A wm_dtype_t is a type.
bool
wm_reduce_takes(wm_reduce_type_t type, wm_reduce_op_t op);

// Bytes of an element.
size_t
wm_reduce_size(wm_reduce_type_t type);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_reduce_prepare(int device, wm_error_t *err);

// The row of WM_REDUCE_KERNEL_ROWS that serves a type, and the number that its
// kernel, or another made of it, has for the operation; of those alone whose
// result depends on several sources.
int
wm_reduce_row(wm_reduce_type_t type, wm_reduce_op_t op, uint32_t *called);

// Enqueues one kernel, none where nothing is to be done: of 1 to
// WM_REDUCE_SOURCES sources, all of which the device reaches, at any address;
// fastest where all are alike modulo WM_REDUCE_VECTOR. WM_ERR_VALUE for
// another number and what is not taken.
WM_MUST_CHECK int
wm_reduce_launch(int device, wm_reduce_type_t type, wm_reduce_op_t op,
                 void *dst, const void *const *src, int n, size_t count,
                 CUstream stream, wm_error_t *err);

// Likewise, as a whole: what is wanted, and a word that the kernel tells when
// it has ended. There is one then, also where nothing is to be done.
typedef struct {
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    void *const *dst; // 1 to WM_REDUCE_TARGETS: all have the result
    int targets;
    const void *const *src;
    int n;
    size_t count;       // 1 at least
    wm_signal_t signal; // its word may be NULL
} wm_reduction_t;

WM_MUST_CHECK int
wm_reduce_enqueue(int device, const wm_reduction_t *reduction, CUstream stream,
                  wm_error_t *err);

// What its kernel would be given, of whose row it returns the number; -1 where
// it computes nothing.
int
wm_reduce_describe(const wm_reduction_t *reduction,
                   wm_reduce_params_t *params);

// How many blocks it has work for: on few each thread asks for much before it
// uses any, on many their ends take longer to tell.
uint64_t
wm_reduce_blocks(const wm_reduce_params_t *params);

// The same here and now, of host memory: the same bits, but for those of NaNs.
// What is taken, and any number of sources.
void
wm_reduce_host(wm_reduce_type_t type, wm_reduce_op_t op, void *dst,
               const void *const *src, int n, size_t count);

#endif
