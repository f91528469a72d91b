// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/pattern.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm/comm.h"
#include "comm/engine/stats.h"

bool
wm_pattern_is_strided(const wm_pattern_t *pattern)
{
    return pattern->type == MPI_DATATYPE_NULL;
}

static void
pattern_bounds(const wm_pattern_t *pattern, char **low, char **high)
{
    *low = *high = pattern->parts[0].data;
    for (int i = 0; i < pattern->count; ++i) {
        char *first, *behind;
        wm_strided_bounds(&pattern->parts[i], &first, &behind);
        *low = first < *low ? first : *low;
        *high = behind > *high ? behind : *high;
    }
}

void
wm_buffer_bounds(const wm_buffer_t *buffer, char **low, char **high)
{
    *low = buffer->data;
    *high = buffer->data + buffer->nbytes;
    if (buffer->pattern != NULL && wm_pattern_is_strided(buffer->pattern))
        pattern_bounds(buffer->pattern, low, high);
}

// Returns true if two buffers share a byte. Knows only strides of one part;
// returns true for others.
static bool
share_strided(const wm_buffer_t *one, const wm_buffer_t *other)
{
    wm_strided_t runs[2];
    const wm_strided_t *parts[2];
    const wm_buffer_t *buffers[] = {one, other};
    for (int i = 0; i < 2; ++i) {
        const wm_pattern_t *pattern = buffers[i]->pattern;
        if (pattern != NULL
            && (!wm_pattern_is_strided(pattern) || pattern->count > 1))
            return true;
        if (pattern == NULL)
            wm_strided_init(&runs[i], buffers[i]->data,
                            (int64_t)buffers[i]->nbytes);
        parts[i] = pattern != NULL ? pattern->parts : &runs[i];
    }
    return wm_strided_share(parts[0], parts[1]);
}

// Finds the span of a buffer, also for a datatype that only MPI can walk.
static void
find_span(const wm_buffer_t *buffer, uintptr_t *low, uintptr_t *high)
{
    char *first, *behind;
    const wm_pattern_t *pattern = buffer->pattern;
    if (pattern != NULL && !wm_pattern_is_strided(pattern)) {
        *low = (uintptr_t)pattern->data + (uintptr_t)pattern->low;
        *high = *low + pattern->span;
        return;
    }
    wm_buffer_bounds(buffer, &first, &behind);
    *low = (uintptr_t)first;
    *high = (uintptr_t)behind;
}

bool
wm_buffer_share(const wm_buffer_t *one, const wm_buffer_t *other)
{
    uintptr_t low, high, from, behind;
    if (one->nbytes == 0 || other->nbytes == 0)
        return false;
    find_span(one, &low, &high);
    find_span(other, &from, &behind);
    return low < behind && from < high && share_strided(one, other);
}

// Returns the part that contains byte `at`, and its length. *at becomes the
// offset in this part.
static const wm_strided_t *
find_part(const wm_pattern_t *pattern, size_t *at, size_t *nbytes)
{
    const wm_strided_t *part = pattern->parts;
    *nbytes = wm_strided_nbytes(part);
    while (*at >= *nbytes && part < pattern->parts + pattern->count - 1) {
        *at -= *nbytes;
        *nbytes = wm_strided_nbytes(++part);
    }
    return part;
}

bool
wm_pattern_cut(const wm_pattern_t *pattern, size_t at, size_t nbytes,
               wm_strided_t *part)
{
    size_t all;
    const wm_strided_t *found = find_part(pattern, &at, &all);
    return at + nbytes <= all && wm_strided_cut(found, at, nbytes, part);
}

int
wm_pattern_copy_part(const wm_pattern_t *pattern, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err)
{
    int code = 0;
    size_t all;
    const wm_strided_t *part = find_part(pattern, &at, &all);
    const wm_strided_t *behind = pattern->parts + pattern->count;
    for (; nbytes > 0 && part < behind && code == 0; ++part, at = 0) {
        size_t left = wm_strided_nbytes(part) - at;
        size_t length = nbytes < left ? nbytes : left;
        code = wm_strided_copy_part(part, at, packed, length, packs, device,
                                    stream, err);
        packed += length;
        nbytes -= length;
    }
    return code;
}

// Packs or unpacks elements in portions, as MPI's packing counts in int before
// MPI 4.
static int
pack_elements(const wm_pattern_t *pattern, char *packed, size_t count,
              char *base, bool packs, MPI_Comm comm, wm_error_t *err)
{
    // Not 0: larger elements are in parts.
    size_t most = INT_MAX / pattern->size;
    int code = 0;
    while (count > 0 && code == 0) {
        int portion = (int)(count < most ? count : most);
        int nbytes = portion * (int)pattern->size, position = 0;
        code = wm_mpi_check(packs ? MPI_Pack(base, portion, pattern->type,
                                             packed, nbytes, &position, comm)
                                  : MPI_Unpack(packed, nbytes, &position, base,
                                               portion, pattern->type, comm),
                            packs ? "MPI_Pack" : "MPI_Unpack", err);
        base += portion * pattern->extent;
        packed += nbytes;
        count -= (size_t)portion;
    }
    return code;
}

// Unpacks the first bytes of an element, inside of which a message may end.
// MPI unpacks whole elements only, so the other bytes are packed first.
static int
unpack_part(const wm_pattern_t *pattern, const char *packed, size_t nbytes,
            char *base, MPI_Comm comm, wm_error_t *err)
{
    char *element = malloc(pattern->size);
    if (element == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = pack_elements(pattern, element, 1, base, true, comm, err);
    if (code == 0) {
        memcpy(element, packed, nbytes);
        code = pack_elements(pattern, element, 1, base, false, comm, err);
    }
    free(element);
    return code;
}

int
wm_pattern_pack(const wm_pattern_t *pattern, char *packed, size_t nbytes,
                char *base, MPI_Comm comm, wm_error_t *err)
{
    if (wm_pattern_is_strided(pattern))
        return wm_pattern_copy_part(pattern, 0, packed, nbytes, true, -1, NULL,
                                    err);
    return pack_elements(pattern, packed, nbytes / pattern->size,
                         base != NULL ? base : pattern->data, true, comm, err);
}

int
wm_pattern_unpack(const wm_pattern_t *pattern, const char *packed,
                  size_t nbytes, char *base, MPI_Comm comm, wm_error_t *err)
{
    if (wm_pattern_is_strided(pattern))
        return wm_pattern_copy_part(pattern, 0, (char *)packed, nbytes, false,
                                    -1, NULL, err);
    size_t whole = nbytes / pattern->size, rest = nbytes % pattern->size;
    base = base != NULL ? base : pattern->data;
    int code = pack_elements(pattern, (char *)packed, whole, base, false, comm,
                             err);
    if (code == 0 && rest > 0)
        code = unpack_part(pattern, packed + nbytes - rest, rest,
                           base + (MPI_Aint)whole * pattern->extent, comm,
                           err);
    return code;
}

int
wm_pattern_stage(const wm_pattern_t *pattern, int device, CUstream stream,
                 char *packed, size_t nbytes, MPI_Comm comm, wm_error_t *err)
{
    char *span;
    int code = wm_pinned_alloc(pattern->span, (void **)&span, err);
    if (code < 0)
        return code;
    code = wm_memory_copy(device, span, pattern->data + pattern->low,
                          pattern->span, stream, err);
    int ended = wm_stream_synchronize(device, stream, code < 0 ? NULL : err);
    if (code == 0)
        code = ended;
    if (code == 0)
        code = wm_pattern_pack(pattern, packed, nbytes,
                               wm_pattern_base(pattern, span), comm, err);
    if (code == 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
    wm_pinned_free(span);
    return code;
}

int
wm_pattern_copy(const wm_buffer_t *buffer, size_t at, size_t nbytes,
                char *packed, bool packs, int device, CUstream stream,
                wm_error_t *err)
{
    if (buffer->pattern == NULL)
        return wm_memory_copy(device, packs ? packed : buffer->data + at,
                              packs ? buffer->data + at : packed, nbytes,
                              stream, err);
    return wm_pattern_copy_part(buffer->pattern, at, packed, nbytes, packs,
                                device, stream, err);
}
