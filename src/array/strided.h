// SPDX-License-Identifier: BSD-3-Clause
// Memory with gaps, seen as one row of bytes: runs of contiguous bytes, in
// strided dimensions around them that are walked the first one slowest. What
// elements are, and in which order they lie in memory, it does not know. GIL
// not needed.
#ifndef WM_ARRAY_STRIDED_H
#define WM_ARRAY_STRIDED_H

#include "array/array.h"
#include "array/layout.h"

#define WM_STRIDED_NDIM (WM_MAX_NDIM - 1) // the run is a dimension as well

typedef struct {
    char *data;  // first byte
    int64_t run; // bytes; 0 where there are none at all
    int ndim;
    int64_t shape[WM_STRIDED_NDIM];
    int64_t strides[WM_STRIDED_NDIM]; // bytes, of either sign
} wm_strided_t;

// One run of so many bytes.
void
wm_strided_init(wm_strided_t *strided, char *data, int64_t run);

// All of it `count` times, `stride` bytes apart: a new slowest dimension,
// unless it continues what is there. False where there are too many.
WM_MUST_CHECK bool
wm_strided_repeat(wm_strided_t *strided, int64_t count, int64_t stride);

// All of it, and then all of `next`: where both are walked in strides as one.
// Else false, and nothing has changed.
WM_MUST_CHECK bool
wm_strided_append(wm_strided_t *strided, const wm_strided_t *next);

// An array's elements in C order. False where it has too many dimensions.
WM_MUST_CHECK bool
wm_strided_from_array(wm_strided_t *strided, const wm_array_t *array);

size_t
wm_strided_nbytes(const wm_strided_t *strided);

// Whether a byte is there more than once, by a stride of 0.
bool
wm_strided_repeats(const wm_strided_t *strided);

// The lowest byte, and the one behind the highest.
void
wm_strided_bounds(const wm_strided_t *strided, char **low, char **high);

// The `nbytes` from byte `at` on, which are there, where these are in strides
// as well; else false.
bool
wm_strided_cut(const wm_strided_t *strided, size_t at, size_t nbytes,
               wm_strided_t *part);

// How the bytes of one become those of another, which has as many; false where
// no dimensions walk both.
bool
wm_strided_pair(const wm_strided_t *dst, const wm_strided_t *src,
                wm_layout_t *layout);

// Returns true if two have a byte in common. Some that have none give true as
// well: their strides are of so many kinds that to find out would take long.
bool
wm_strided_share(const wm_strided_t *one, const wm_strided_t *other);

// Enqueues a copy between the `nbytes` from byte `at` on, which are there, and
// contiguous memory, `packed`, which is written where the copy `packs`. Both
// can be reached by kernels on `device`; for -1 both are host memory, and it
// is done at once.
WM_MUST_CHECK int
wm_strided_copy_part(const wm_strided_t *strided, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err);

#endif
