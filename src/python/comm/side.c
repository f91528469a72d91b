// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/side.h"

#include <string.h>

#include "comm/message/pattern.h"
#include "python/message/datatype.h"
#include "python/message/elements.h"

// Returns a count, or a pair of count and displacement, with the count times
// `blocks`; other objects unchanged.
static PyObject *
times(PyObject *count, int blocks)
{
    if (count == Py_None || PyUnicode_Check(count)
        || wm_py_mpi_is_datatype(count))
        return Py_NewRef(count);
    if (PyTuple_Check(count) && PyTuple_GET_SIZE(count) == 2)
        return Py_BuildValue("NO", times(PyTuple_GET_ITEM(count, 0), blocks),
                             PyTuple_GET_ITEM(count, 1));
    PyObject *index = PyNumber_Index(count), *by = PyLong_FromLong(blocks);
    PyObject *product = index != NULL && by != NULL
                            ? PyNumber_Multiply(index, by)
                            : NULL;
    Py_XDECREF(index);
    Py_XDECREF(by);
    return product;
}

// Returns a buffer that counts one block as a buffer that counts all blocks.
static PyObject *
of_all(PyObject *value, int blocks)
{
    bool listed = PyList_Check(value) || PyTuple_Check(value);
    if (!listed || PySequence_Fast_GET_SIZE(value) < 2)
        return Py_NewRef(value);
    PyObject *list = PySequence_List(value);
    PyObject *count = list != NULL && PyList_GET_SIZE(list) > 1
                          ? times(PyList_GET_ITEM(list, 1), blocks)
                          : NULL;
    if (count == NULL || PyList_SetItem(list, 1, count) < 0)
        Py_CLEAR(list);
    return list;
}

static int
read_message(PyObject *value, bool writable, bool reduces, wm_side_t *side)
{
    static const char *const arguments[] = {"sendbuf", "recvbuf"};
    wm_with_gaps_t gaps = side->contiguous ? WM_GAPS_NONE
                          : reduces        ? WM_GAPS_OF_ARRAYS
                                           : WM_GAPS_OF_GPUS;
    if (value == NULL
        || wm_py_message_parse_gaps(value, writable, arguments[writable], gaps,
                                    &side->message)
               < 0)
        return -1;
    side->given = true;
    return 0;
}

// Reads, through Python, the places of the blocks of a v-form, and the message
// with all blocks if they have a datatype.
static int
read_spans(PyObject *value, bool writable, int size, wm_side_t *side)
{
    PyObject *told = wm_py_cold("warpmpi._staging.layout", "spans_of",
                                "(nnOi)", (Py_ssize_t)side->message.size,
                                (Py_ssize_t)side->message.buffer.nbytes, value,
                                size);
    PyObject *all;
    const char *bytes;
    Py_ssize_t length;
    int code = -1;
    if (told != NULL && told != Py_None
        && PyArg_ParseTuple(told, "y#O:spans_of", &bytes, &length, &all)
        && (size_t)length == (size_t)size * sizeof(wm_span_t)) {
        memcpy(side->spans, bytes, (size_t)length);
        side->varies = true;
        code = 0;
        if (all != Py_None) {
            wm_py_message_release(&side->message);
            side->given = false;
            code = read_message(all, writable, false, side);
        }
    }
    Py_XDECREF(told);
    return code;
}

// Describes a block of Alltoallw: `count` elements from a byte on, of `length`
// bytes. Returns false if strides cannot describe it, or it is outside.
static bool
take_block(PyObject *block, bool writable, char *data, size_t length,
           wm_strided_t *part)
{
    Py_ssize_t at, count;
    PyObject *object;
    MPI_Datatype type;
    wm_extent_t of;
    char *low, *high;
    wm_strided_init(part, data, 0);
    if (!PyArg_ParseTuple(block, "nnO:blocks_of", &at, &count, &object))
        return false;
    if (count == 0)
        return true;
    part->data += at;
    if (count < 0 || wm_py_mpi_datatype(object, "buffer", &type) < 0
        || type == MPI_DATATYPE_NULL
        || wm_py_datatype_measure(type, "buffer", &of) < 0
        || (of.size > 0 && count > (Py_ssize_t)length / of.size)
        || !wm_py_datatype_decode(type, part)
        || !wm_strided_repeat(part, count, of.extent)
        || (writable && wm_strided_repeats(part)))
        return false;
    wm_strided_bounds(part, &low, &high);
    return low >= data && high <= data + length;
}

// Makes the message of the parts of a pattern, those of each rank one after
// the other.
static void
scatter(const wm_neighbor_part_t *parts, int size, wm_pattern_t *pattern,
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
    wm_neighbor_part_t parts[WM_NEIGHBOR_PARTS];
    wm_message_t *message = &side->message;
    char *data = message->buffer.data;
    int count = wm_neighbor_parts(neighbors, size, parts);
    PyObject *told = wm_py_cold("warpmpi._staging.layout", "separate_blocks",
                                "(Oi)", value, neighbors->count);
    wm_pattern_t *pattern = told != NULL && told != Py_None
                                    && message->buffer.pattern == NULL
                                ? wm_py_elements_parts(count)
                                : NULL;
    bool taken = pattern != NULL;
    for (int i = 0; i < count && taken; ++i) {
        wm_strided_init(&pattern->parts[i], data, 0);
        if (parts[i].block >= 0)
            taken = take_block(PyList_GET_ITEM(told, parts[i].block), writable,
                               data, message->buffer.nbytes,
                               &pattern->parts[i]);
    }
    Py_XDECREF(told);
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
assign(wm_form_t form, int size, const wm_neighbors_t *neighbors,
       wm_side_t *side)
{
    wm_neighbor_part_t parts[WM_NEIGHBOR_PARTS];
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

// Returns a buffer of blocks at a GPU address as memory of the length that the
// blocks need; any other buffer unchanged. Returns NULL if this is impossible.
static PyObject *
measured(PyObject *value, wm_form_t form, int blocks)
{
    PyObject *array = wm_py_message_array(value);
    if (array == value || !wm_py_mpi_is_address(array)
        || !wm_py_message_on_device(array))
        return Py_NewRef(value);
    PyObject *told = wm_py_cold("warpmpi._staging.layout", "measured", "(Osi)",
                                value, form == WM_VARYING ? "v" : "w", blocks);
    if (told == Py_None)
        Py_CLEAR(told);
    return told;
}

static int
read_side(PyObject *value, bool writable, bool reduces, wm_form_t form,
          int size, const wm_neighbors_t *neighbors, wm_side_t *side)
{
    int blocks = neighbors != NULL ? neighbors->count : size;
    wm_neighbors_t all = {.count = size};
    for (int rank = 0; rank < size && form == WM_SEPARATE; ++rank)
        all.ranks[rank] = rank;
    bool apart = form == WM_VARYING || form == WM_SEPARATE;
    PyObject *array = apart ? Py_NewRef(wm_py_message_array(value))
                      : form == WM_EQUAL ? of_all(value, blocks)
                                         : Py_NewRef(value);
    int code = read_message(array, writable, reduces, side);
    Py_XDECREF(array);
    if (code < 0)
        return -1;
    wm_message_t *message = &side->message;
    if (reduces && message->user != NULL && message->whole) {
        wm_py_message_widen(message); // pairs are reduced with their gaps
        message->user = NULL;
    }
    bool on_device = wm_buffer_on_device(&message->buffer);
    bool nothing = side->contiguous && message->buffer.nbytes == 0; // anywhere
    if (apart && !on_device && !nothing)
        return -1;
    if (form == WM_SEPARATE)
        return message->user == NULL
                   ? read_blocks(value, writable, size,
                                 neighbors != NULL ? neighbors : &all, side)
                   : -1;
    if (form == WM_VARYING && read_spans(value, writable, blocks, side) < 0)
        return -1;
    const wm_pattern_t *pattern = message->buffer.pattern;
    if (message->user != NULL
        || (pattern != NULL && !wm_pattern_is_strided(pattern))
        || (message->size != message->extent
            && (!on_device || side->contiguous)))
        return -1;
    bool compared = reduces && !writable; // compared with the receive side
    if (form == WM_EQUAL && blocks > 0 && !compared
        && message->buffer.nbytes % ((size_t)blocks * message->size) != 0)
        return -1;
    return neighbors != NULL ? assign(form, size, neighbors, side) : 0;
}

int
wm_py_side_read(PyObject *value, bool writable, bool reduces, wm_form_t form,
                int size, const wm_neighbors_t *neighbors, wm_side_t *side)
{
    bool apart = form == WM_VARYING || form == WM_SEPARATE;
    if (size > WM_BARRIER_RANKS)
        return -1;
    PyObject *given = apart ? measured(value, form,
                                       neighbors != NULL ? neighbors->count
                                                         : size)
                            : Py_NewRef(value);
    int code = given != NULL ? read_side(given, writable, reduces, form, size,
                                         neighbors, side)
                             : -1;
    Py_XDECREF(given);
    return code;
}
