// SPDX-License-Identifier: BSD-3-Clause
// Memory with gaps that other ranks read in place: the published description,
// and moves out of such memory or into it. A move needs no copy without gaps
// between, if the dimensions of both sides allow it. GIL not needed.
#ifndef WM_COMM_COLL_DIRECT_STRIDED_DESC_H
#define WM_COMM_COLL_DIRECT_STRIDED_DESC_H

#include "comm/message/pattern.h"

#define WM_STRIDED_DESC_NDIM 3 // strided dimensions that are published

// Strided memory relative to `origin`. Unused dimensions have extent 1.
typedef struct {
    int64_t at, run;
    int64_t shape[WM_STRIDED_DESC_NDIM], strides[WM_STRIDED_DESC_NDIM];
} wm_strided_desc_t;

// Fills *gaps. Returns false if there are too many dimensions.
bool
wm_strided_desc_describe(const wm_strided_t *strided, const char *origin,
                         wm_strided_desc_t *gaps);

// Returns the bytes of all elements.
size_t
wm_strided_desc_nbytes(const wm_strided_desc_t *gaps);

// Returns true if all elements lie between `before` bytes before `origin` and
// `behind` bytes after it. The numbers are another rank's, and may be
// anything.
bool
wm_strided_desc_is_within(const wm_strided_desc_t *gaps, uint64_t before,
                          uint64_t behind);

// A move of `nbytes` bytes, from offset `from` of the send data to offset
// `into` of the receive data. Send data are at `origin`, contiguous if `gaps`
// is NULL. Receive data are at `target`, or as `pattern` says.
typedef struct {
    const wm_strided_desc_t *gaps;
    char *origin;
    size_t from;
    const wm_pattern_t *pattern;
    char *target;
    size_t into;
    size_t nbytes;
} wm_strided_desc_move_t;

// Returns true if neither side has gaps.
bool
wm_strided_desc_is_dense(const wm_strided_desc_move_t *move);

// Returns true if wm_strided_desc_move() can do the move.
bool
wm_strided_desc_can_move(const wm_strided_desc_move_t *move);

// Enqueues the move; kernels on `device` reach both memories.
WM_MUST_CHECK int
wm_strided_desc_move(const wm_strided_desc_move_t *move, int device,
                     CUstream stream, wm_error_t *err);

#endif
