// SPDX-License-Identifier: BSD-3-Clause
#include "array/layout.h"

#include <string.h>

#define WIDEST 16

// Takes the dimensions of more than one element. Makes strides of dst
// positive: walking both sides backwards in one dimension is the same copy.
static void
take_dimensions(wm_layout_t *layout, const wm_array_t *dst,
                const wm_array_t *src)
{
    int n = 0;
    layout->dst = dst->data;
    layout->src = src->data;
    for (int i = 0; i < dst->ndim; i++) {
        int64_t shape = dst->shape[i];
        int64_t to = dst->strides[i];
        int64_t from = src->strides[i];
        if (shape == 1)
            continue;
        if (to < 0) {
            layout->dst += (shape - 1) * to;
            layout->src += (shape - 1) * from;
            to = -to;
            from = -from;
        }
        layout->shape[n] = shape;
        layout->dst_strides[n] = to;
        layout->src_strides[n++] = from;
    }
    layout->ndim = n;
}

static int64_t
magnitude(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static bool
is_slower(const wm_layout_t *layout, int i, int j)
{
    if (layout->dst_strides[i] != layout->dst_strides[j])
        return layout->dst_strides[i] > layout->dst_strides[j];
    return magnitude(layout->src_strides[i])
           > magnitude(layout->src_strides[j]);
}

static void
swap_dimensions(wm_layout_t *layout, int i, int j)
{
    int64_t shape = layout->shape[i];
    int64_t to = layout->dst_strides[i];
    int64_t from = layout->src_strides[i];
    layout->shape[i] = layout->shape[j];
    layout->dst_strides[i] = layout->dst_strides[j];
    layout->src_strides[i] = layout->src_strides[j];
    layout->shape[j] = shape;
    layout->dst_strides[j] = to;
    layout->src_strides[j] = from;
}

// Sorts the dimensions, the slowest one of dst first; stable.
static void
sort_dimensions(wm_layout_t *layout)
{
    for (int i = 1; i < layout->ndim; i++)
        for (int j = i; j > 0 && is_slower(layout, j, j - 1); j--)
            swap_dimensions(layout, j, j - 1);
}

// Makes the fastest dimensions part of the run if they continue it on both
// sides.
static void
grow_run(wm_layout_t *layout)
{
    while (layout->ndim > 0) {
        int last = layout->ndim - 1;
        if (layout->dst_strides[last] != layout->run
            || layout->src_strides[last] != layout->run)
            return;
        layout->run *= layout->shape[last];
        layout->ndim = last;
    }
}

// Merges each dimension whose stride equals the extent of the next inner one.
static void
merge_dimensions(wm_layout_t *layout)
{
    int n = 0;
    for (int i = 1; i < layout->ndim; i++) {
        int64_t shape = layout->shape[i];
        if (layout->dst_strides[n] == shape * layout->dst_strides[i]
            && layout->src_strides[n] == shape * layout->src_strides[i]) {
            layout->shape[n] *= shape;
        }
        else {
            n++;
            layout->shape[n] = shape;
        }
        layout->dst_strides[n] = layout->dst_strides[i];
        layout->src_strides[n] = layout->src_strides[i];
    }
    layout->ndim = layout->ndim > 0 ? n + 1 : 0;
}

void
wm_layout_init(wm_layout_t *layout, const wm_array_t *dst,
               const wm_array_t *src)
{
    take_dimensions(layout, dst, src);
    layout->run = wm_dtype_info(dst->dtype)->itemsize;
    sort_dimensions(layout);
    grow_run(layout);
    merge_dimensions(layout);
}

bool
wm_layout_is_contiguous(const wm_layout_t *layout)
{
    return layout->ndim == 0;
}

int
wm_layout_unit(const wm_layout_t *layout)
{
    uint64_t bits = (uint64_t)layout->run | (uint64_t)layout->dst
                    | (uint64_t)layout->src | WIDEST;
    for (int i = 0; i < layout->ndim; i++) {
        bits |= (uint64_t)layout->dst_strides[i];
        bits |= (uint64_t)layout->src_strides[i];
    }
    return (int)(bits & -bits);
}

// Goes on to the next run, the fastest dimension first. Returns false after
// the last run.
static bool
layout_advance(const wm_layout_t *layout, int64_t *index, char **dst,
               char **src)
{
    for (int i = layout->ndim - 1; i >= 0; i--) {
        *dst += layout->dst_strides[i];
        *src += layout->src_strides[i];
        if (++index[i] < layout->shape[i])
            return true;
        index[i] = 0;
        *dst -= layout->shape[i] * layout->dst_strides[i];
        *src -= layout->shape[i] * layout->src_strides[i];
    }
    return false;
}

#define COPY_LINE(type)                                                       \
    for (int64_t i = 0; i < count; i++) {                                     \
        type value;                                                           \
        memcpy(&value, src + i * src_stride, sizeof(value));                  \
        memcpy(dst + i * dst_stride, &value, sizeof(value));                  \
    }                                                                         \
    break

// Copies one line of `count` runs; the usual sizes without a call for each
// run.
static void
copy_line(char *dst, int64_t dst_stride, const char *src, int64_t src_stride,
          int64_t count, int64_t run)
{
    switch (run) {
    case 1:
        COPY_LINE(uint8_t);
    case 2:
        COPY_LINE(uint16_t);
    case 4:
        COPY_LINE(uint32_t);
    case 8:
        COPY_LINE(uint64_t);
    default:
        for (int64_t i = 0; i < count; i++)
            memcpy(dst + i * dst_stride, src + i * src_stride, (size_t)run);
    }
}

void
wm_layout_copy_host(const wm_layout_t *layout)
{
    if (layout->ndim == 0) {
        memcpy(layout->dst, layout->src, (size_t)layout->run);
        return;
    }
    wm_layout_t lines = *layout;
    int last = --lines.ndim;
    int64_t index[WM_MAX_NDIM] = {0};
    char *dst = lines.dst;
    char *src = lines.src;
    do {
        copy_line(dst, lines.dst_strides[last], src, lines.src_strides[last],
                  lines.shape[last], lines.run);
    } while (layout_advance(&lines, index, &dst, &src));
}

void
wm_layout_fill_host(const wm_layout_t *layout, const void *value,
                    size_t itemsize)
{
    int64_t index[WM_MAX_NDIM] = {0};
    char *dst = layout->dst;
    char *src = layout->src;
    do {
        if (itemsize == 1) {
            memset(dst, *(const unsigned char *)value, (size_t)layout->run);
            continue;
        }
        for (char *at = dst; at < dst + layout->run; at += itemsize)
            memcpy(at, value, itemsize);
    } while (layout_advance(layout, index, &dst, &src));
}
