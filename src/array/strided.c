// SPDX-License-Identifier: BSD-3-Clause
#include "array/strided.h"

#include <string.h>

#include "array/copy.h"

void
wm_strided_init(wm_strided_t *strided, char *data, int64_t run)
{
    strided->data = data;
    strided->run = run;
    strided->ndim = 0;
}

bool
wm_strided_repeat(wm_strided_t *strided, int64_t count, int64_t stride)
{
    if (count == 1 || strided->run == 0)
        return true;
    if (count == 0) {
        strided->run = 0;
        strided->ndim = 0;
        return true;
    }
    int64_t *shape = strided->shape, *strides = strided->strides;
    if (strided->ndim == 0 && stride == strided->run) {
        strided->run *= count;
        return true;
    }
    if (strided->ndim > 0 && stride == shape[0] * strides[0]) {
        shape[0] *= count;
        return true;
    }
    if (strided->ndim == WM_STRIDED_NDIM)
        return false;
    memmove(shape + 1, shape, (size_t)strided->ndim * sizeof *shape);
    memmove(strides + 1, strides, (size_t)strided->ndim * sizeof *strides);
    shape[0] = count;
    strides[0] = stride;
    ++strided->ndim;
    return true;
}

// Returns true if the runs and the last dimensions are the same.
static bool
strided_ends_alike(const wm_strided_t *one, const wm_strided_t *other,
                   int ndim)
{
    size_t bytes = (size_t)ndim * sizeof(int64_t);
    int i = one->ndim - ndim, j = other->ndim - ndim;
    return one->run == other->run
           && memcmp(one->shape + i, other->shape + j, bytes) == 0
           && memcmp(one->strides + i, other->strides + j, bytes) == 0;
}

bool
wm_strided_append(wm_strided_t *strided, const wm_strided_t *next)
{
    int64_t step = next->data - strided->data;
    int ndim = strided->ndim, more = next->ndim;
    if (strided->run == 0 || next->run == 0) {
        if (strided->run == 0)
            *strided = *next;
        return true;
    }
    if (ndim == 0 && more == 0 && step == strided->run) {
        strided->run += next->run;
        return true;
    }
    // `next` adds one index, or several, to the slowest dimension.
    bool longer = ndim > 0 && step == strided->shape[0] * strided->strides[0];
    if (longer && more == ndim && next->strides[0] == strided->strides[0]
        && strided_ends_alike(strided, next, ndim - 1)) {
        strided->shape[0] += next->shape[0];
        return true;
    }
    if (longer && more == ndim - 1
        && strided_ends_alike(strided, next, more)) {
        ++strided->shape[0];
        return true;
    }
    if (more == ndim + 1 && step == next->strides[0]
        && strided_ends_alike(strided, next, ndim)) {
        char *data = strided->data;
        *strided = *next;
        strided->data = data;
        ++strided->shape[0];
        return true;
    }
    return more == ndim && strided_ends_alike(strided, next, ndim)
           && wm_strided_repeat(strided, 2, step);
}

bool
wm_strided_from_array(wm_strided_t *strided, const wm_array_t *array)
{
    wm_strided_init(strided, array->data,
                    wm_dtype_info(array->dtype)->itemsize);
    for (int i = array->ndim - 1; i >= 0; --i)
        if (!wm_strided_repeat(strided, array->shape[i], array->strides[i]))
            return false;
    return true;
}

size_t
wm_strided_nbytes(const wm_strided_t *strided)
{
    size_t nbytes = (size_t)strided->run;
    for (int i = 0; i < strided->ndim; ++i)
        nbytes *= (size_t)strided->shape[i];
    return nbytes;
}

bool
wm_strided_repeats(const wm_strided_t *strided)
{
    bool repeats = false;
    for (int i = 0; i < strided->ndim; ++i)
        repeats |= strided->strides[i] == 0;
    return repeats;
}

void
wm_strided_bounds(const wm_strided_t *strided, char **low, char **high)
{
    *low = strided->data;
    *high = wm_strided_moved(strided->data, strided->run);
    for (int i = 0; i < strided->ndim; ++i) {
        int64_t length = (strided->shape[i] - 1) * strided->strides[i];
        char **end = length < 0 ? low : high;
        *end = wm_strided_moved(*end, length);
    }
}

bool
wm_strided_cut(const wm_strided_t *strided, size_t at, size_t nbytes,
               wm_strided_t *part)
{
    size_t all = wm_strided_nbytes(strided);
    char *data = strided->data;
    int first = 0;
    for (; first < strided->ndim; ++first) {
        size_t inner = all / (size_t)strided->shape[first];
        if (at % inner == 0 && nbytes % inner == 0)
            break;
        if (at / inner != (at + nbytes - 1) / inner)
            return false;
        data += (int64_t)(at / inner) * strided->strides[first];
        at %= inner;
        all = inner;
    }
    if (first == strided->ndim) {
        wm_strided_init(part, data + at, (int64_t)nbytes);
        return true;
    }
    size_t inner = all / (size_t)strided->shape[first];
    int64_t stride = strided->strides[first];
    wm_strided_init(part, data + (int64_t)(at / inner) * stride, strided->run);
    for (int i = strided->ndim - 1; i > first; --i)
        if (!wm_strided_repeat(part, strided->shape[i], strided->strides[i]))
            return false;
    return wm_strided_repeat(part, (int64_t)(nbytes / inner), stride);
}

// Returns the extent of a dimension, and its stride. Dimension 0 is the
// fastest: the run.
static int64_t
extent_of(const wm_strided_t *strided, int at, int64_t *stride)
{
    int i = strided->ndim - at;
    *stride = at > 0 ? strided->strides[i] : 1;
    return at > 0 ? strided->shape[i] : strided->run;
}

bool
wm_strided_pair(const wm_strided_t *dst, const wm_strided_t *src,
                wm_layout_t *layout)
{
    wm_array_t to = {.dtype = WM_UINT8, .data = dst->data};
    wm_array_t from = {.dtype = WM_UINT8, .data = src->data};
    int i = 0, j = 0;
    int64_t into, off, left = extent_of(dst, i, &into),
                       right = extent_of(src, j, &off);
    for (;;) { // the fastest dimension first
        int64_t both = left < right ? left : right;
        if (to.ndim == WM_MAX_NDIM || left % both != 0 || right % both != 0)
            return false;
        to.shape[to.ndim] = from.shape[to.ndim] = both;
        to.strides[to.ndim] = into;
        from.strides[to.ndim++] = off;
        left /= both;
        right /= both;
        into *= both;
        off *= both;
        if (left == 1 && i < dst->ndim)
            left = extent_of(dst, ++i, &into);
        if (right == 1 && j < src->ndim)
            right = extent_of(src, ++j, &off);
        if (left == 1 && right == 1)
            break;
    }
    from.ndim = to.ndim;
    wm_layout_init(layout, &to, &from);
    return true;
}

// One direction of a copy, and its position in the packed bytes.
typedef struct {
    bool packs;
    char *packed;
    int device;
    CUstream stream;
} way_t;

// Copies `count` indices of dimension `first`, from `data` on, with all
// dimensions inside of it. If `first` is behind the last dimension, copies
// `count` bytes of the run.
static int
copy_box(const wm_strided_t *strided, int first, int64_t count, char *data,
         const way_t *way, wm_error_t *err)
{
    wm_array_t gaps = {.dtype = WM_UINT8, .data = data};
    wm_array_t dense = {.dtype = WM_UINT8, .data = way->packed};
    wm_layout_t layout;
    for (int i = first; i <= strided->ndim; ++i) {
        bool run = i == strided->ndim;
        int at = gaps.ndim++;
        gaps.shape[at] = i == first ? count
                         : run      ? strided->run
                                    : strided->shape[i];
        gaps.strides[at] = run ? 1 : strided->strides[i];
    }
    dense.ndim = gaps.ndim;
    int64_t stride = 1;
    for (int i = dense.ndim - 1; i >= 0; --i) {
        dense.shape[i] = gaps.shape[i];
        dense.strides[i] = stride;
        stride *= dense.shape[i];
    }
    wm_layout_init(&layout, way->packs ? &dense : &gaps,
                   way->packs ? &gaps : &dense);
    if (way->device >= 0)
        return wm_copy_layout(&layout, way->device, way->stream, err);
    wm_layout_copy_host(&layout);
    return 0;
}

// Copies `nbytes` bytes from `at` on, within the dimensions from `first` on,
// which have `all` bytes. The whole indices of `first` are one box; the
// indices cut at the begin and at the end are copied by recursion into the
// next dimension.
static int
strided_copy(const wm_strided_t *strided, int first, size_t all, char *data,
             size_t at, size_t nbytes, way_t *way, wm_error_t *err)
{
    int code = 0;
    if (nbytes == 0)
        return 0;
    if (first == strided->ndim) {
        code = copy_box(strided, first, (int64_t)nbytes, data + at, way, err);
        way->packed += nbytes;
        return code;
    }
    int64_t stride = strided->strides[first];
    size_t inner = all / (size_t)strided->shape[first], inside = at % inner;
    data += (int64_t)(at / inner) * stride;
    if (inside > 0) {
        size_t rest = inner - inside < nbytes ? inner - inside : nbytes;
        code = strided_copy(strided, first + 1, inner, data, inside, rest, way,
                            err);
        data += stride;
        nbytes -= rest;
    }
    size_t count = nbytes / inner;
    if (count > 0 && code == 0) {
        code = copy_box(strided, first, (int64_t)count, data, way, err);
        way->packed += count * inner;
    }
    return code < 0 ? code
                    : strided_copy(strided, first + 1, inner,
                                   data + (int64_t)count * stride, 0,
                                   nbytes % inner, way, err);
}

int
wm_strided_copy_part(const wm_strided_t *strided, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err)
{
    way_t way = {packs, packed, device, stream};
    return strided_copy(strided, 0, wm_strided_nbytes(strided), strided->data,
                        at, nbytes, &way, err);
}

// A stride, and how often it may count between two bytes of a pair.
typedef struct {
    int64_t stride, least, most;
} between_t;

#define BETWEEN (2 * WM_STRIDED_NDIM)
#define PAIRS_TRIED 1000

// Adds the strides of the dimensions, equal strides once, the longest first.
// `sign` tells the side of the pair.
static int
add_between(const wm_strided_t *strided, int sign, between_t *all, int count)
{
    for (int i = 0; i < strided->ndim; ++i) {
        int64_t stride = sign * strided->strides[i], at = 0;
        bool down = stride < 0;
        stride = down ? -stride : stride;
        if (strided->shape[i] <= 1 || stride == 0)
            continue;
        while (at < count && all[at].stride > stride)
            ++at;
        if (at == count || all[at].stride != stride) {
            memmove(&all[at + 1], &all[at],
                    (size_t)(count - at) * sizeof *all);
            all[at] = (between_t){.stride = stride};
            ++count;
        }
        if (down)
            all[at].least -= strided->shape[i] - 1;
        else
            all[at].most += strided->shape[i] - 1;
    }
    return count;
}

static int64_t
divide_down(int64_t value, int64_t by)
{
    return value / by - (value % by < 0);
}

// Returns true if `distance` plus some of these strides can lie above `low`
// and below `high`.
static bool
can_collide(const between_t *all, int count, int64_t distance, int64_t low,
            int64_t high, int *left)
{
    if (count == 0)
        return low < distance && distance < high;
    int64_t least = 0, most = 0; // sums that the shorter strides add
    for (int i = 1; i < count; ++i) {
        least += all[i].least * all[i].stride;
        most += all[i].most * all[i].stride;
    }
    int64_t first = divide_down(low - distance - most, all->stride) + 1;
    int64_t last = -divide_down(distance + least - high, all->stride) - 1;
    first = first > all->least ? first : all->least;
    last = last < all->most ? last : all->most;
    for (int64_t times = first; times <= last; ++times)
        if (--*left < 0
            || can_collide(all + 1, count - 1, distance + times * all->stride,
                           low, high, left))
            return true;
    return false;
}

bool
wm_strided_share(const wm_strided_t *one, const wm_strided_t *other)
{
    between_t all[BETWEEN];
    int left = PAIRS_TRIED;
    if (wm_strided_nbytes(one) == 0 || wm_strided_nbytes(other) == 0)
        return false;
    int count = add_between(one, -1, all, 0);
    count = add_between(other, 1, all, count);
    int64_t distance = (int64_t)((uintptr_t)other->data
                                 - (uintptr_t)one->data);
    return can_collide(all, count, distance, -other->run, one->run, &left);
}
