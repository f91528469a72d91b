// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transfer/strided_desc.h"

bool
wm_strided_desc_describe(const wm_strided_t *strided, const char *origin,
                         wm_strided_desc_t *gaps)
{
    if (strided->ndim > WM_STRIDED_DESC_NDIM)
        return false;
    gaps->at = strided->data - origin;
    gaps->run = strided->run;
    for (int i = 0; i < WM_STRIDED_DESC_NDIM; ++i) {
        gaps->shape[i] = i < strided->ndim ? strided->shape[i] : 1;
        gaps->strides[i] = i < strided->ndim ? strided->strides[i] : 0;
    }
    return true;
}

void
wm_strided_desc_open(const wm_strided_desc_t *gaps, char *origin,
                     wm_strided_t *strided)
{
    wm_strided_init(strided, origin + gaps->at, gaps->run);
    while (strided->ndim < WM_STRIDED_DESC_NDIM
           && gaps->shape[strided->ndim] > 1) {
        strided->shape[strided->ndim] = gaps->shape[strided->ndim];
        strided->strides[strided->ndim] = gaps->strides[strided->ndim];
        ++strided->ndim;
    }
}

size_t
wm_strided_desc_nbytes(const wm_strided_desc_t *gaps)
{
    wm_strided_t strided;
    wm_strided_desc_open(gaps, NULL, &strided);
    return wm_strided_nbytes(&strided);
}

bool
wm_strided_desc_is_within(const wm_strided_desc_t *gaps, uint64_t before,
                          uint64_t behind)
{
    int64_t low = gaps->at, high, all = gaps->run, length;
    bool beyond = gaps->run <= 0
                  || __builtin_add_overflow(gaps->at, gaps->run, &high);
    for (int i = 0; i < WM_STRIDED_DESC_NDIM && !beyond; ++i) {
        int64_t *end = gaps->strides[i] < 0 ? &low : &high;
        beyond = gaps->shape[i] < 1
                 || __builtin_mul_overflow(all, gaps->shape[i], &all)
                 || __builtin_mul_overflow(gaps->shape[i] - 1,
                                           gaps->strides[i], &length)
                 || __builtin_add_overflow(*end, length, end);
    }
    return !beyond && (low >= 0 || -(uint64_t)low <= before)
           && (high <= 0 || (uint64_t)high <= behind);
}
