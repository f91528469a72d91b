// SPDX-License-Identifier: BSD-3-Clause
// Parameters of the strided copy and fill kernels, wm_copy_<unit> and
// wm_fill_<unit> with unit 1, 2, 4, 8 or 16 bytes. Shared by C (which launches
// them) and CUDA. The last dimension varies fastest; all strides are bytes and
// multiples of the unit, as are the addresses.
#ifndef WM_KERNELS_COPY_H
#define WM_KERNELS_COPY_H

#ifndef __cplusplus
#include <stdalign.h>
#endif
#include <stdint.h>

#define WM_COPY_NDIM 8

// Division by a number known beforehand, for dividends below 2^31: the
// quotient is (mulhi(n, magic) + n) >> shift (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994).
typedef struct {
    uint32_t divisor;
    uint32_t magic;
    uint32_t shift;
} wm_divisor_t;

typedef struct {
    char *dst;
    const char *src;
    uint64_t count; // units in all
    int32_t ndim;   // 1 to WM_COPY_NDIM
    int32_t narrow; // count < 2^31: `divisors` are valid
    uint64_t shape[WM_COPY_NDIM];
    int64_t dst_strides[WM_COPY_NDIM];
    int64_t src_strides[WM_COPY_NDIM];
    wm_divisor_t divisors[WM_COPY_NDIM];
} wm_copy_params_t;

// Parameters of a fill. The last dimension runs within an element or a run of
// elements; `pattern` repeats the element from the start of a run.
typedef struct {
    char *dst;
    uint64_t count;
    int32_t ndim;
    int32_t narrow;
    uint64_t shape[WM_COPY_NDIM];
    int64_t dst_strides[WM_COPY_NDIM];
    wm_divisor_t divisors[WM_COPY_NDIM];
    alignas(16) uint64_t pattern[2];
} wm_fill_params_t;

#endif
