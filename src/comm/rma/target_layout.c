// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/target_layout.h"

#include <stdlib.h>

#define HEAD 3 // words before the dimensions

size_t
wm_target_layout_words(const wm_strided_t *parts, size_t count)
{
    size_t words = 0;
    for (size_t i = 0; i < count; ++i)
        words += HEAD + 2 * (size_t)parts[i].ndim;
    return words;
}

void
wm_target_layout_write(const wm_strided_t *parts, size_t count, int64_t *words)
{
    for (size_t i = 0; i < count; ++i) {
        const wm_strided_t *part = &parts[i];
        *words++ = (int64_t)(intptr_t)part->data;
        *words++ = part->run;
        *words++ = part->ndim;
        for (int d = 0; d < part->ndim; ++d) {
            *words++ = part->shape[d];
            *words++ = part->strides[d];
        }
    }
}

// Adds what a dimension spans to the bounds. Returns false if a number
// overflows.
static bool
target_layout_widen(int64_t shape, int64_t stride, int64_t *nbytes,
                    int64_t *low, int64_t *high)
{
    int64_t reach;
    return shape > 0 && !__builtin_mul_overflow(shape - 1, stride, &reach)
           && !__builtin_mul_overflow(*nbytes, shape, nbytes)
           && !__builtin_add_overflow(reach < 0 ? *low : *high, reach,
                                      reach < 0 ? low : high);
}

// Reads one part from at most `left` words. Returns how many it takes; 0 if
// its numbers are impossible.
static size_t
target_layout_part(const int64_t *words, size_t left, wm_strided_t *part,
                   int64_t *nbytes, int64_t *low, int64_t *high)
{
    if (left < HEAD || words[1] <= 0 || words[2] < 0
        || words[2] > WM_STRIDED_NDIM || left < HEAD + 2 * (size_t)words[2])
        return 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an offset
    part->data = (char *)(intptr_t)words[0];
    part->run = *nbytes = words[1];
    part->ndim = (int)words[2];
    *low = words[0];
    if (__builtin_add_overflow(words[0], words[1], high))
        return 0;
    words += HEAD;
    for (int d = 0; d < part->ndim; ++d, words += 2) {
        part->shape[d] = words[0];
        part->strides[d] = words[1];
        if (!target_layout_widen(words[0], words[1], nbytes, low, high))
            return 0;
    }
    return HEAD + 2 * (size_t)part->ndim;
}

int
wm_target_layout_read(const int64_t *words, size_t count, uint64_t nbytes,
                      size_t size, wm_pattern_t **result, int64_t *low,
                      int64_t *high, wm_error_t *err)
{
    size_t room = count / HEAD;
    wm_pattern_t *pattern = malloc(sizeof *pattern
                                   + room * sizeof *pattern->parts);
    if (pattern == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int64_t all = 0;
    size_t taken = 1;
    *pattern = (wm_pattern_t){.type = MPI_DATATYPE_NULL};
    for (size_t at = 0; at < count && taken > 0; at += taken) {
        int64_t part = 0, first = 0, behind = 0;
        taken = target_layout_part(words + at, count - at,
                                   &pattern->parts[pattern->count], &part,
                                   &first, &behind);
        if (taken == 0 || __builtin_add_overflow(all, part, &all)
            || pattern->parts[pattern->count].run % (int64_t)size != 0)
            taken = 0;
        if (pattern->count == 0 || first < *low)
            *low = first;
        if (pattern->count == 0 || behind > *high)
            *high = behind;
        ++pattern->count;
    }
    if (taken == 0 || pattern->count == 0 || (uint64_t)all != nbytes) {
        free(pattern);
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "the gaps that the origin has told are impossible, "
            "or have other than the operation's %llu bytes",
            (unsigned long long)nbytes);
    }
    *result = pattern;
    return 0;
}
