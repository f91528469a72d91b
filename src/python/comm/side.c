// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/side.h"

#include <string.h>

#include "comm/message/pattern.h"
#include "python/message/blocks.h"
#include "python/message/datatype.h"
#include "python/message/elements.h"
#include "python/message/owner.h"

static int
read_message(PyObject *value, bool writable, bool reduces, wm_side_t *side)
{
    static const char *const arguments[] = {"sendbuf", "recvbuf"};
    wm_with_gaps_t gaps = side->contiguous            ? WM_GAPS_NONE
                          : reduces && side->anywhere ? WM_GAPS_OF_ANY_ARRAYS
                          : reduces                   ? WM_GAPS_OF_ARRAYS
                          : side->anywhere            ? WM_GAPS_ALL
                                                      : WM_GAPS_OF_GPUS;
    if (value == NULL
        || wm_py_message_parse_gaps(value, writable, arguments[writable], gaps,
                                    &side->message)
               < 0)
        return -1;
    side->given = true;
    return 0;
}

// Reads the message again, as `count` elements of a datatype.
static int
read_typed(PyObject *value, Py_ssize_t count, PyObject *datatype,
           bool writable, wm_side_t *side)
{
    PyObject *all = Py_BuildValue("(OnO)", wm_py_message_array(value), count,
                                  datatype);
    wm_py_message_release(&side->message);
    side->given = false;
    int code = all != NULL ? read_message(all, writable, false, side) : -1;
    Py_XDECREF(all);
    return code;
}

// Finds the places of the blocks of a v-form. Blocks of a derived datatype do
// not count its gaps: *derived is the datatype, which all blocks have, and
// *total the elements from the array's first on. Returns false if a block is
// outside of the array.
static bool
take_spans(const wm_py_blocks_t *blocks, Py_ssize_t itemsize, size_t length,
           wm_span_t *spans, PyObject **derived, Py_ssize_t *total)
{
    for (int i = 0; i < blocks->count; ++i) {
        const wm_py_block_t *block = &blocks->blocks[i];
        size_t at = (size_t)block->at, count = (size_t)block->count;
        wm_extent_t of = {.size = itemsize};
        bool apart = false;
        if (block->at < 0 || block->count < 0)
            return false;
        if (block->datatype != NULL) {
            MPI_Aint low;
            MPI_Type_size_x(block->type, &of.size);
            MPI_Type_get_extent(block->type, &low, &of.extent);
            apart = !wm_py_datatype_is_predefined(block->type)
                    || of.size != itemsize;
        }
        size_t size = (size_t)of.size;
        if ((apart && of.extent <= 0)
            || (size > 0 && count > PY_SSIZE_T_MAX / size)
            || (!apart
                && (count * size > length || at > length - count * size)))
            return false;
        if (apart) {
            at = at / (size_t)of.extent * size;
            *derived = block->datatype;
            Py_ssize_t end = block->at / of.extent + block->count;
            *total = end > *total ? end : *total;
        }
        spans[i] = (wm_span_t){at, count * size};
    }
    return true;
}

// Returns the bytes of an element of the array as mpi4py counts them.
static Py_ssize_t
counted_size(PyObject *value, const wm_message_t *message)
{
    const wm_owner_t *owner = message->buffer.owner;
    Py_ssize_t size = (Py_ssize_t)message->size;
    return owner != NULL && owner->viewed && message->buffer.nbytes > 0
               ? size
                     * (Py_ssize_t)wm_py_view_inner(wm_py_message_array(value),
                                                    &owner->view.array)
               : size;
}

// Reads the places of the blocks of a v-form, and the message with all blocks
// if they have a datatype.
static int
read_spans(PyObject *value, bool writable, int size, wm_side_t *side)
{
    wm_py_blocks_t blocks;
    PyObject *derived = NULL;
    Py_ssize_t total = 0, itemsize = counted_size(value, &side->message);
    size_t length = side->message.buffer.nbytes;
    if (wm_py_blocks_read(value, WM_VARYING, size, itemsize,
                          (Py_ssize_t)length, &blocks)
        < 0)
        return -1;
    int code = blocks.count == size
                       && take_spans(&blocks, itemsize, length, side->spans,
                                     &derived, &total)
                   ? 0
                   : -1;
    if (code == 0 && derived != NULL)
        code = read_typed(value, total, derived, writable, side);
    side->varies = code == 0;
    wm_py_blocks_free(&blocks);
    return code;
}

// Describes a block of Alltoallw within `length` bytes. Returns false if
// strides cannot describe it, or it is outside.
static bool
take_block(const wm_py_block_t *block, bool writable, char *data,
           size_t length, wm_strided_t *part)
{
    wm_extent_t of;
    char *low, *high;
    wm_strided_init(part, data, 0);
    if (block->count == 0)
        return true;
    if (block->at < -(Py_ssize_t)length || block->at > (Py_ssize_t)length)
        return false;
    part->data += block->at;
    if (block->count < 0 || block->type == MPI_DATATYPE_NULL
        || wm_py_datatype_measure(block->type, "buffer", &of) < 0
        || (of.size > 0 && block->count > (Py_ssize_t)length / of.size)
        || !wm_py_datatype_decode(block->type, part)
        || !wm_strided_repeat(part, block->count, of.extent)
        || (writable && wm_strided_repeats(part)))
        return false;
    wm_strided_bounds(part, &low, &high);
    return low >= data && high <= data + length;
}

// Makes the message of the parts of a pattern, those of each rank one after
// the other.
static void
scatter(const wm_neighbor_block_t *parts, int size, wm_pattern_t *pattern,
        wm_side_t *side)
{
    size_t at = 0;
    memset(side->spans, 0, (size_t)size * sizeof *side->spans);
    for (int i = 0; i < pattern->count; ++i) {
        wm_span_t *span = &side->spans[parts[i].rank];
        size_t nbytes = wm_strided_nbytes(&pattern->parts[i]);
        span->at = span->nbytes == 0 ? at : span->at;
        span->nbytes += nbytes;
        at += nbytes;
    }
    side->varies = true;
    pattern->of_ranks = true;
    wm_py_message_scatter(&side->message, pattern, at);
}

// Reads the blocks of a w-form, each with a datatype of its own.
static int
read_blocks(PyObject *value, bool writable, int size,
            const wm_neighbors_t *neighbors, wm_side_t *side)
{
    wm_neighbor_block_t parts[WM_NEIGHBOR_PARTS];
    wm_message_t *message = &side->message;
    char *data = message->buffer.data;
    int count = wm_neighbor_parts(neighbors, size, parts);
    wm_py_blocks_t blocks;
    bool taken = message->buffer.pattern == NULL
                 && wm_py_blocks_read(value, WM_SEPARATE, neighbors->count, 1,
                                      0, &blocks)
                        == 0;
    if (!taken)
        return wm_py_drop_refusal(), -1; // MPI, or mpi4py, tells
    wm_pattern_t *pattern = wm_py_elements_parts(count);
    taken = pattern != NULL && blocks.count == neighbors->count;
    for (int i = 0; i < count && taken; ++i) {
        wm_strided_init(&pattern->parts[i], data, 0);
        if (parts[i].block >= 0)
            taken = take_block(&blocks.blocks[parts[i].block], writable, data,
                               message->buffer.nbytes, &pattern->parts[i]);
    }
    wm_py_blocks_free(&blocks);
    if (!taken) {
        wm_py_elements_free(pattern);
        return -1;
    }
    scatter(parts, size, pattern, side);
    return 0;
}

// Assigns the blocks of neighbours to ranks. If a rank has several blocks, the
// blocks become parts of a pattern.
static int
assign(wm_block_form_t form, int size, const wm_neighbors_t *neighbors,
       wm_side_t *side)
{
    wm_neighbor_block_t parts[WM_NEIGHBOR_PARTS];
    wm_span_t blocks[WM_BARRIER_RANKS];
    char *data = side->message.buffer.data;
    size_t nbytes = side->message.buffer.nbytes;
    size_t each = form == WM_EQUAL && neighbors->count > 0
                      ? nbytes / (size_t)neighbors->count
                      : 0;
    for (int i = 0; i < neighbors->count; ++i)
        blocks[i] = form == WM_VARYING ? side->spans[i]
                    : form == WM_EQUAL ? (wm_span_t){(size_t)i * each, each}
                                       : (wm_span_t){0, nbytes};
    int count = wm_neighbor_parts(neighbors, size, parts);
    bool on_device = wm_buffer_on_device(&side->message.buffer);
    if (count > size && !on_device && !side->contiguous)
        return -1; // MPI assembles parts of host memory
    wm_pattern_t *pattern = count > size ? wm_py_elements_parts(count) : NULL;
    if (count > size && pattern == NULL)
        return -1;
    const wm_pattern_t *gaps = side->message.buffer.pattern;
    for (int i = 0; i < count; ++i) {
        int block = parts[i].block;
        wm_span_t span = block >= 0 ? blocks[block] : (wm_span_t){0, 0};
        if (pattern == NULL)
            side->spans[i] = span;
        else if (gaps == NULL || span.nbytes == 0)
            wm_strided_init(&pattern->parts[i],
                            data + (gaps == NULL ? span.at : 0),
                            (int64_t)span.nbytes);
        else if (!wm_pattern_cut(gaps, span.at, span.nbytes,
                                 &pattern->parts[i])) {
            wm_py_elements_free(pattern);
            return -1;
        }
    }
    side->varies = true;
    if (pattern != NULL)
        scatter(parts, size, pattern, side);
    return 0;
}

// Makes a buffer at an address as long as its allocation, as counts, and not
// the declared length, limit it. Returns true if the buffer was changed.
static bool
widen_address(PyObject *value, wm_block_form_t form, wm_buffer_t *buffer)
{
    const wm_pointer_t *memory = &buffer->memory;
    bool wide = memory->size > 0
                && wm_py_mpi_is_address(wm_py_message_array(value))
                && wm_py_blocks_has_counts(value, form);
    if (wide)
        buffer->nbytes = memory->base + memory->size - (uintptr_t)buffer->data;
    return wide;
}

// Returns the end of the last block.
static size_t
end_of(const wm_span_t *spans, int count)
{
    size_t end = 0;
    for (int i = 0; i < count; ++i)
        if (spans[i].nbytes > 0 && spans[i].at + spans[i].nbytes > end)
            end = spans[i].at + spans[i].nbytes;
    return end;
}

int
wm_py_side_read(PyObject *value, bool writable, bool reduces,
                wm_block_form_t form, int size,
                const wm_neighbors_t *neighbors, wm_side_t *side)
{
    bool apart = form == WM_VARYING || form == WM_SEPARATE;
    if (size > WM_BARRIER_RANKS && (apart || neighbors != NULL))
        return -1; // `spans` has no room
    int blocks = neighbors != NULL ? neighbors->count : size;
    wm_neighbors_t all = {.count = size};
    for (int rank = 0; rank < size && form == WM_SEPARATE; ++rank)
        all.ranks[rank] = rank;
    PyObject *array = apart ? Py_NewRef(wm_py_message_array(value))
                      : form == WM_EQUAL ? wm_py_blocks_of_all(value, blocks)
                                         : Py_NewRef(value);
    int code = read_message(array, writable, reduces, side);
    Py_XDECREF(array);
    if (code < 0)
        return -1;
    wm_message_t *message = &side->message;
    if (reduces && message->whole) {  // `user` is NULL where nothing is
        wm_py_message_widen(message); // pairs are reduced with their gaps
        message->user = NULL;
    }
    bool on_device = wm_buffer_on_device(&message->buffer);
    bool nothing = side->contiguous && message->buffer.nbytes == 0; // anywhere
    if (apart && !on_device && !nothing && !side->anywhere)
        return -1;
    bool wide = apart && on_device
                && widen_address(value, form, &message->buffer);
    if (form == WM_SEPARATE)
        return message->user == NULL
                   ? read_blocks(value, writable, size,
                                 neighbors != NULL ? neighbors : &all, side)
                   : -1;
    if (form == WM_VARYING && read_spans(value, writable, blocks, side) < 0)
        return -1;
    if (wide)
        message->buffer.nbytes = end_of(side->spans, blocks);
    const wm_pattern_t *pattern = message->buffer.pattern;
    if (message->user != NULL
        || (!side->anywhere
            && ((pattern != NULL && !wm_pattern_is_strided(pattern))
                || (message->size != message->extent
                    && (!on_device || side->contiguous)))))
        return -1;
    bool compared = reduces && !writable; // compared with the receive side
    if (form == WM_EQUAL && blocks > 0 && !compared
        && message->buffer.nbytes % ((size_t)blocks * message->size) != 0)
        return -1;
    return neighbors != NULL ? assign(form, size, neighbors, side) : 0;
}
