// SPDX-License-Identifier: BSD-3-Clause
// Memory with gaps, seen as one row of bytes: runs of contiguous bytes, in
// strided dimensions around them, the first dimension slowest. Elements and
// their order in memory are unknown here. The GIL is not needed.
#ifndef WM_ARRAY_STRIDED_H
#define WM_ARRAY_STRIDED_H

#include "array/array.h"
#include "array/layout.h"

#define WM_STRIDED_NDIM (WM_MAX_NDIM - 1) // the run is a dimension as well

typedef struct {
    char *data;  // first byte
    int64_t run; // bytes; 0 if the memory is empty
    int ndim;
    int64_t shape[WM_STRIDED_NDIM];
    int64_t strides[WM_STRIDED_NDIM]; // bytes, of either sign
} wm_strided_t;

// Returns the address `nbytes` behind `data`, which may be NULL where memory
// of another rank is described, counted from there.
static inline char *
wm_strided_moved(char *data, int64_t nbytes)
{
    return (char *)((uintptr_t)data + (uintptr_t)nbytes);
}

// Initialises one run of `run` bytes.
void
wm_strided_init(wm_strided_t *strided, char *data, int64_t run);

// Repeats the whole `count` times, `stride` bytes apart: adds a new slowest
// dimension, unless the copies continue each other. Returns false if there are
// too many dimensions.
WM_MUST_CHECK bool
wm_strided_repeat(wm_strided_t *strided, int64_t count, int64_t stride);

// Appends `next`, if the whole can be described by strides. Else returns false
// and changes nothing.
WM_MUST_CHECK bool
wm_strided_append(wm_strided_t *strided, const wm_strided_t *next);

// Describes an array's elements in C order. Returns false if it has too many
// dimensions.
WM_MUST_CHECK bool
wm_strided_from_array(wm_strided_t *strided, const wm_array_t *array);

size_t
wm_strided_nbytes(const wm_strided_t *strided);

// Returns true if a stride of 0 repeats a byte.
bool
wm_strided_repeats(const wm_strided_t *strided);

// Writes the address of the lowest byte, and the address behind the highest.
void
wm_strided_bounds(const wm_strided_t *strided, char **low, char **high);

// Describes the `nbytes` bytes from byte `at` on. Both are within the memory.
// Returns false if strides cannot describe this part.
bool
wm_strided_cut(const wm_strided_t *strided, size_t at, size_t nbytes,
               wm_strided_t *part);

// Computes the layout of a copy between two memories of equal size. Returns
// false if no common dimensions walk both.
bool
wm_strided_pair(const wm_strided_t *dst, const wm_strided_t *src,
                wm_layout_t *layout);

// Returns true if two memories have a byte in common. May also return true for
// some that have none: with strides of many kinds an exact answer would take
// long.
bool
wm_strided_share(const wm_strided_t *one, const wm_strided_t *other);

// Enqueues a copy between the `nbytes` bytes from byte `at` on and the
// contiguous memory at `packed`, which is the destination if `packs`. Kernels
// on `device` reach both. With `device` -1 both are host memory, and the copy
// is done before the return.
WM_MUST_CHECK int
wm_strided_copy_part(const wm_strided_t *strided, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err);

#endif
