// SPDX-License-Identifier: BSD-3-Clause
// The shape of a copy: the dimensions of two arrays of the same shape, merged
// and sorted into runs of contiguous bytes and as few strided dimensions as
// possible. Pure functions.
#ifndef WM_ARRAY_LAYOUT_H
#define WM_ARRAY_LAYOUT_H

#include "array/array.h"

typedef struct {
    char *dst;
    char *src;
    int64_t run; // bytes that are contiguous on both sides
    int ndim;    // dimensions around the run, the slowest first
    int64_t shape[WM_MAX_NDIM];
    int64_t dst_strides[WM_MAX_NDIM]; // never negative
    int64_t src_strides[WM_MAX_NDIM];
} wm_layout_t;

// Initialises the layout of a copy between two arrays of equal shape and
// dtype, without an extent of 0.
void
wm_layout_init(wm_layout_t *layout, const wm_array_t *dst,
               const wm_array_t *src);

// Returns true if the whole copy is one run.
bool
wm_layout_is_contiguous(const wm_layout_t *layout);

// Returns the widest unit (1, 2, 4, 8 or 16 bytes) that divides all addresses,
// strides and the run.
int
wm_layout_unit(const wm_layout_t *layout);

// Copies on the host before it returns. The two sides do not overlap.
void
wm_layout_copy_host(const wm_layout_t *layout);

// Sets every element at dst, of `itemsize` bytes, on the host before it
// returns.
void
wm_layout_fill_host(const wm_layout_t *layout, const void *value,
                    size_t itemsize);

#endif
