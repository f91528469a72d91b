// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/elements.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/posted.h"

// Computes the bounds of elements, in more bits than any product of the
// arguments needs.
static void
span(const wm_extent_t *of, Py_ssize_t first, Py_ssize_t count, __int128 *low,
     __int128 *high)
{
    __int128 start = (__int128)first * of->extent;
    __int128 last = start + (__int128)(count - 1) * of->extent;
    *low = (last < start ? last : start) + of->low;
    *high = (last < start ? start : last) + of->high;
}

bool
wm_py_elements_fit(const wm_extent_t *of, Py_ssize_t first, Py_ssize_t count,
                   size_t before, size_t length)
{
    __int128 low, high;
    span(of, first, count, &low, &high);
    return count == 0
           || (low >= -(__int128)before && high <= (__int128)length
               && (__int128)count * of->size <= PY_SSIZE_T_MAX);
}

int
wm_py_elements_slice(wm_strided_t *strided, const wm_extent_t *of,
                     Py_ssize_t first, Py_ssize_t count, const char *argument)
{
    size_t length = wm_strided_nbytes(strided);
    if (first == 0 && (size_t)count * (size_t)of->size == length)
        return 0;
    if (strided->ndim != 1 || strided->run != of->size)
        return wm_py_fail(
            PyExc_ValueError,
            "%s: the array is not contiguous, so a count or a displacement "
            "does not say where its elements are; slice the array instead",
            argument);
    strided->data += first * strided->strides[0];
    strided->shape[0] = count;
    return 0;
}

wm_pattern_t *
wm_py_elements_parts(int count)
{
    wm_pattern_t *pattern = malloc(sizeof *pattern
                                   + (size_t)count * sizeof(wm_strided_t));
    if (pattern == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    pattern->type = MPI_DATATYPE_NULL;
    pattern->of_ranks = false;
    pattern->count = count;
    return pattern;
}

static wm_pattern_t *
refuse_repeats(const char *argument)
{
    PyErr_Format(PyExc_ValueError,
                 "%s: elements have the same address (a stride of 0); receive "
                 "into an array with memory for each element",
                 argument);
    return NULL;
}

wm_pattern_t *
wm_py_elements_strided(const wm_strided_t *strided, bool writable,
                       const char *argument)
{
    if (strided->ndim == 0)
        return NULL;
    if (writable && wm_strided_repeats(strided))
        return refuse_repeats(argument);
    wm_pattern_t *pattern = wm_py_elements_parts(1);
    if (pattern != NULL)
        pattern->parts[0] = *strided;
    return pattern;
}

wm_pattern_t *
wm_py_elements_in_parts(const wm_typemap_t *parts, bool writable,
                        const char *argument)
{
    bool repeats = false;
    if (parts->count == 1)
        return wm_py_elements_strided(parts->parts, writable, argument);
    for (int i = 0; i < parts->count; ++i)
        repeats |= wm_strided_repeats(&parts->parts[i]);
    if (writable && repeats)
        return refuse_repeats(argument);
    wm_pattern_t *pattern = wm_py_elements_parts(parts->count);
    if (pattern != NULL)
        memcpy(pattern->parts, parts->parts,
               (size_t)parts->count * sizeof *parts->parts);
    return pattern;
}

wm_pattern_t *
wm_py_elements_typed(MPI_Datatype type, const wm_extent_t *of, MPI_Count count,
                     char *data, const char *argument)
{
    if (of->size > INT_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "%s: one element of the datatype has %lld bytes, in many "
                     "pieces, and MPI cannot pack so many bytes: use a "
                     "datatype with smaller elements",
                     argument, (long long)of->size);
        return NULL;
    }
    wm_pattern_t *pattern = wm_py_elements_parts(0);
    if (pattern == NULL)
        return NULL;
    if (wm_py_datatype_copy(type, argument, &pattern->type) < 0) {
        free(pattern);
        return NULL;
    }
    MPI_Aint last = (MPI_Aint)(count - 1) * of->extent;
    pattern->data = data;
    pattern->size = (size_t)of->size;
    pattern->extent = of->extent;
    pattern->low = of->low + (last < 0 ? last : 0);
    pattern->span = (size_t)(of->high - of->low + (last < 0 ? -last : last));
    return pattern;
}

static bool
is_host(MPI_Aint at)
{
    wm_pointer_t memory;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what was given
    return wm_pointer_describe((const void *)at, &memory, NULL) == 0
           && !wm_memory_on_device(&memory);
}

int
wm_py_elements_refuse_mix(const char *argument)
{
    return wm_py_fail(
        PyExc_ValueError,
        "%s: the addresses are in several allocations, and some of these are "
        "GPU memory: MPI.BOTTOM takes host memory, or one allocation of GPU "
        "memory; give each of them a datatype and a call of its own",
        argument);
}

// Finds the memory that addresses from `low` to `high`, with a datatype at
// `data`, are in. GPU memory must be of one allocation: MPI packs a copy of
// all of it, with the gaps. Returns 0; 1 for a mix; -1 with an exception.
static int
find_memory(__int128 low, __int128 high, MPI_Datatype type, __int128 data,
            const char *argument, wm_pointer_t *memory)
{
    wm_error_t err;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what was given
    if (wm_pointer_describe((const void *)(intptr_t)low, memory, &err) < 0)
        return wm_py_raise_of(argument, &err);
    uintptr_t base = memory->base, size = memory->size;
    return wm_memory_on_device(memory)
               ? (uintptr_t)low - base >= size || (uintptr_t)high - base > size
               : wm_device_count() > 0
                     && !wm_py_datatype_blocks(type, (MPI_Aint)data, is_host);
}

int
wm_py_elements_allocation(const wm_extent_t *of, MPI_Datatype type,
                          Py_ssize_t address, Py_ssize_t count,
                          const char *argument, wm_pointer_t *memory)
{
    __int128 low, high;
    span(of, 0, count, &low, &high);
    low += address;
    high += address;
    if (count <= 0 || of->size == 0 || low <= 0 || high > PY_SSIZE_T_MAX) {
        *memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
        return 0;
    }
    return find_memory(low, high, type, address, argument, memory);
}

// Finds the memory of a message over MPI.BOTTOM.
static int
take_memory(__int128 low, __int128 high, MPI_Datatype type,
            const char *argument, wm_buffer_t *buffer)
{
    int code = find_memory(low, high, type, (intptr_t)buffer->data, argument,
                           &buffer->memory);
    if (code != 0)
        return code < 0 ? -1 : wm_py_elements_refuse_mix(argument);
    if (wm_buffer_on_device(buffer)) // no stream is named for this memory
        buffer->producer = (wm_producer_t){
            .kind = WM_PRODUCER_DEVICE,
            .device = buffer->memory.device >= 0 ? buffer->memory.device : 0,
        };
    return 0;
}

int
wm_py_elements_absolute(const wm_extent_t *of, MPI_Datatype type,
                        Py_ssize_t displacement, Py_ssize_t count,
                        const char *argument, wm_buffer_t *buffer)
{
    __int128 low, high;
    span(of, displacement, count, &low, &high);
    __int128 nbytes = (__int128)count * of->size;
    if (nbytes > PY_SSIZE_T_MAX || high > PY_SSIZE_T_MAX)
        return wm_py_fail(PyExc_ValueError,
                          "%s: %zd elements of the datatype end beyond the "
                          "address space; give a smaller count",
                          argument, count);
    buffer->nbytes = (size_t)nbytes;
    if (nbytes == 0)
        return 0;
    if (low <= 0)
        return wm_py_fail(PyExc_ValueError,
                          "%s: the datatype has no absolute addresses "
                          "(MPI.Get_address), which MPI.BOTTOM needs",
                          argument);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are what was given
    buffer->data = (char *)(intptr_t)((__int128)displacement * of->extent);
    return take_memory(low, high, type, argument, buffer);
}

void
wm_py_elements_free(wm_pattern_t *pattern)
{
    if (pattern != NULL && pattern->type != MPI_DATATYPE_NULL
        && wm_engine_check(NULL) == 0)
        WM_PY_UNLOCKED(MPI_Type_free(&pattern->type));
    free(pattern);
}
