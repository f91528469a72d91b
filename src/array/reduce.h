// SPDX-License-Identifier: BSD-3-Clause
// Reductions: dst[i] = src[0][i] op src[1][i] op ... for i < count, in this
// order for any grid, so that equal sources give equal bits. With one source
// the result is a copy. dst may be one of the sources, and overlaps no other
// source. Integers wrap around. float16 and bfloat16 are computed in float32
// and rounded once. MIN and MAX of a NaN and a number are NaN. MINLOC and
// MAXLOC take the lower index of equal values. Any thread; no GIL.
#ifndef WM_ARRAY_REDUCE_H
#define WM_ARRAY_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/device.h"
#include "kernels/reduce.h"

// Returns true if MPI has the operation for these elements; for float16 and
// bfloat16, if MPI has it for float32. WM_REDUCE_AVG takes integers, floats
// and complex numbers. Every wm_dtype_t is a valid type.
bool
wm_reduce_takes(wm_reduce_type_t type, wm_reduce_op_t op);

// Returns the bytes of an element.
size_t
wm_reduce_size(wm_reduce_type_t type);

// Returns the row of WM_REDUCE_KERNEL_ROWS that serves a type. Sets *called to
// the operation's number in this row's kernels, and *average to what they
// divide the result of `n` sources by. For operations whose result depends on
// several sources.
int
wm_reduce_row(wm_reduce_type_t type, wm_reduce_op_t op, int n,
              uint32_t *called, wm_average_t *average);

// Enqueues one kernel for 1 to WM_REDUCE_SOURCES sources, all reachable by the
// device, at any address; no kernel if there is nothing to do. Fastest if all
// addresses are equal modulo WM_REDUCE_VECTOR. Fails with WM_ERR_VALUE for
// another number of sources and an operation that wm_reduce_takes() refuses.
WM_MUST_CHECK int
wm_reduce_launch(int device, wm_reduce_type_t type, wm_reduce_op_t op,
                 void *dst, const void *const *src, int n, size_t count,
                 CUstream stream, wm_error_t *err);

// A reduction, with a word that the kernel writes when it has ended. If there
// is a word, the kernel is launched even if the result is in place already.
// Count 0 launches no kernel, and nothing writes the word.
typedef struct {
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    void *const *dst; // 1 to WM_REDUCE_TARGETS, all get the result
    int targets;
    const void *const *src;
    int n;
    int divisor; // of WM_REDUCE_AVG; 0: n
    size_t count;
    wm_signal_t signal; // its word may be NULL
} wm_reduction_t;

// Enqueues the reduction's kernel. Fails as wm_reduce_launch().
WM_MUST_CHECK int
wm_reduce_enqueue(int device, const wm_reduction_t *reduction, CUstream stream,
                  wm_error_t *err);

// A reduction of any number of sources, which lie one after the other, `each`
// bytes apart; but source `own` (-1: none) lies at `its`. More than
// WM_REDUCE_SOURCES are reduced in rounds, in the same order: `sums` has the
// result of a round, and is the first source of the next. So 16-bit elements
// are rounded once a round.
typedef struct {
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    void *dst;
    void *sums; // overlaps no source behind the first round's
    const char *sources;
    size_t each;
    int own;
    const char *its;
    int n;
    int divisor; // of WM_REDUCE_AVG; 0: n
    size_t count;
} wm_reduce_many_t;

// Enqueues its kernels. Fails as wm_reduce_launch().
WM_MUST_CHECK int
wm_reduce_many(int device, const wm_reduce_many_t *many, CUstream stream,
               wm_error_t *err);

// Fills the parameters of the reduction's kernel, and returns the kernel's
// row. Returns -1 if the reduction computes nothing.
int
wm_reduce_describe(const wm_reduction_t *reduction,
                   wm_reduce_params_t *params);

// Returns how many blocks the reduction has work for. With few blocks, each
// thread issues many loads before it uses a value; with many, the end of the
// kernel is reported later.
uint64_t
wm_reduce_blocks(const wm_reduce_params_t *params);

// Reduces host memory before it returns, with the same bits except in NaNs.
// Takes the same operations, and any number of sources.
void
wm_reduce_host(wm_reduce_type_t type, wm_reduce_op_t op, void *dst,
               const void *const *src, int n, size_t count);

// Divides sums of `n` elements in host memory, with the bits of WM_REDUCE_AVG
// except those of sums that were rounded before (float16, bfloat16). The
// address may be unaligned.
void
wm_reduce_divide(wm_reduce_type_t type, void *sums, int n, size_t count);

#endif
