// SPDX-License-Identifier: BSD-3-Clause
// The published description of memory with gaps, by which other ranks read it
// or write it in place. GIL not needed.
#ifndef WM_COMM_TRANSFER_STRIDED_DESC_H
#define WM_COMM_TRANSFER_STRIDED_DESC_H

#include "array/strided.h"

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

// Fills the strided memory that a description gives at `origin`.
void
wm_strided_desc_open(const wm_strided_desc_t *gaps, char *origin,
                     wm_strided_t *strided);

#endif
