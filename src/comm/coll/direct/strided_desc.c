// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/strided_desc.h"

#include "array/copy.h"

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

static void
strided_of(const wm_strided_desc_t *gaps, char *origin, wm_strided_t *strided)
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
    strided_of(gaps, NULL, &strided);
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

// Finds the layout of one copy if both sides have gaps. Returns false if there
// is none.
static bool
pair(const wm_strided_desc_move_t *move, wm_layout_t *layout)
{
    wm_strided_t sent, from, into;
    strided_of(move->gaps, move->origin, &sent);
    return wm_strided_cut(&sent, move->from, move->nbytes, &from)
           && wm_pattern_cut(move->pattern, move->into, move->nbytes, &into)
           && wm_strided_pair(&into, &from, layout);
}

bool
wm_strided_desc_is_dense(const wm_strided_desc_move_t *move)
{
    return move->gaps == NULL && move->pattern == NULL;
}

bool
wm_strided_desc_can_move(const wm_strided_desc_move_t *move)
{
    wm_layout_t layout;
    return move->gaps == NULL || move->pattern == NULL || pair(move, &layout);
}

int
wm_strided_desc_move(const wm_strided_desc_move_t *move, int device,
                     CUstream stream, wm_error_t *err)
{
    wm_strided_t sent;
    wm_layout_t layout;
    char *from = move->origin + move->from, *into = move->target + move->into;
    if (move->gaps == NULL && move->pattern != NULL)
        return wm_pattern_copy_part(move->pattern, move->into, from,
                                    move->nbytes, false, device, stream, err);
    if (wm_strided_desc_is_dense(move))
        return from == into ? 0
                            : wm_memory_copy(device, into, from, move->nbytes,
                                             stream, err);
    if (move->pattern != NULL && !pair(move, &layout))
        return wm_error_set(err, WM_ERR_STATE, 0, "no dimensions walk both");
    if (move->pattern != NULL)
        return wm_copy_layout(&layout, device, stream, err);
    strided_of(move->gaps, move->origin, &sent);
    return wm_strided_copy_part(&sent, move->from, into, move->nbytes, true,
                                device, stream, err);
}
