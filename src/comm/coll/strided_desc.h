// SPDX-License-Identifier: BSD-3-Clause
// Memory with gaps that other ranks read as it is: what is published of it,
// and moves out of such memory or into it, which no copy without gaps comes
// between where the dimensions of both sides allow it. GIL not needed.
#ifndef WM_COMM_COLL_STRIDED_DESC_H
#define WM_COMM_COLL_STRIDED_DESC_H

#include "comm/message/pattern.h"

#define WM_STRIDED_DESC_NDIM 3 // strided dimensions that are published

// Strided memory, from `origin` on; extents of 1 where there are fewer.
typedef struct {
    int64_t at, run;
    int64_t shape[WM_STRIDED_DESC_NDIM], strides[WM_STRIDED_DESC_NDIM];
} wm_strided_desc_t;

// False where it has too many dimensions.
bool
wm_strided_desc_describe(const wm_strided_t *strided, const char *origin,
                         wm_strided_desc_t *gaps);

size_t
wm_strided_desc_nbytes(const wm_strided_desc_t *gaps);

// Returns whether all elements lie in memory that begins so many bytes before
// `origin` and ends so many behind it. Another rank may publish any numbers.
bool
wm_strided_desc_is_within(const wm_strided_desc_t *gaps, uint64_t before,
                          uint64_t behind);

// `nbytes` from byte `from` of what is sent to byte `into` of what is
// received. The one lies at `origin`, contiguous where `gaps` is NULL; the
// other at `target`, or as `pattern` says.
typedef struct {
    const wm_strided_desc_t *gaps;
    char *origin;
    size_t from;
    const wm_pattern_t *pattern;
    char *target;
    size_t into;
    size_t nbytes;
} wm_strided_desc_move_t;

// Whether neither side has gaps.
bool
wm_strided_desc_is_dense(const wm_strided_desc_move_t *move);

// Whether wm_strided_desc_move() can do it.
bool
wm_strided_desc_can_move(const wm_strided_desc_move_t *move);

// Enqueues it; both are memory that kernels on `device` reach.
WM_MUST_CHECK int
wm_strided_desc_move(const wm_strided_desc_move_t *move, int device,
                     CUstream stream, wm_error_t *err);

#endif
