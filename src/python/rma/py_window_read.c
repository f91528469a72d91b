// SPDX-License-Identifier: BSD-3-Clause
#include "python/rma/py_window_read.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/rma/window_attach.h"
#include "python/message/elements.h"
#include "python/message/owner.h"

#define MOST_PARTS (1 << 16) // of a datatype with gaps

// --- sides ----------------------------------------------------------------

// Moves the parts of a datatype out.
static int
take_typemap(wm_typemap_t *parts, wm_window_layout_t *layout)
{
    size_t nbytes = (size_t)parts->count * sizeof *parts->parts;
    layout->parts = malloc(nbytes);
    layout->count = parts->count;
    if (layout->parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(layout->parts, parts->parts, nbytes);
    return 0;
}

// Finds the parts of `count` elements of a datatype with gaps. Returns -1 with
// an exception naming `argument`.
static int
find_parts(MPI_Datatype type, MPI_Count count, MPI_Aint extent, char *data,
           const char *argument, wm_typemap_t *parts)
{
    if (wm_py_datatype_parts(type, count, extent, data, MOST_PARTS, parts))
        return 0;
    wm_py_typemap_free(parts);
    return wm_py_fail(PyExc_ValueError,
                      "%s: the datatype has more than %d blocks that are not "
                      "equally far apart, or MPI tells of it other bounds "
                      "than its blocks have: give one with fewer blocks, or "
                      "with blocks in ascending order",
                      argument, MOST_PARTS);
}

// Returns true for elements with a gap inside, such as MPI.DOUBLE_INT, that a
// call updates: with their gaps, as memory of their extent.
static bool
keeps_gaps(const wm_py_reading_t *reading, MPI_Datatype type)
{
    return reading->call.kind >= WM_TARGET_ACCUMULATE
           && wm_py_datatype_is_predefined(type);
}

static int
parse_side(const wm_py_reading_t *reading, PyObject *value, bool writable,
           const char *argument, wm_message_t *message)
{
    wm_with_gaps_t gaps = reading->remote ? WM_GAPS_ALL
                                          : WM_GAPS_OF_ANY_ARRAYS;
    int code = wm_py_message_parse_gaps(value, writable, argument, gaps,
                                        message);
    if (code < 0 || message->size == message->extent
        || message->datatype == NULL || !keeps_gaps(reading, message->type))
        return code;
    if (reading->remote) {
        wm_py_message_release(message);
        code = wm_py_message_parse_gaps(value, writable, argument,
                                        WM_GAPS_OF_ANY_ARRAYS, message);
    }
    if (code < 0)
        return -1;
    if (!message->whole) {
        wm_py_message_release(message);
        return wm_py_fail(PyExc_ValueError,
                          "%s: the array ends inside of the last element: an "
                          "element has %zu bytes with its gap",
                          argument, message->extent);
    }
    wm_py_message_widen(message);
    message->user = NULL;
    return 0;
}

// Reads an argument. Returns 0, or -1 with an exception.
int
wm_py_reading_side(wm_py_reading_t *reading, int at, PyObject *value,
                   bool writable, const char *argument)
{
    wm_message_t *message = &reading->messages[at];
    wm_window_side_t *side = &reading->sides[at];
    wm_typemap_t parts;
    int code = 0;
    if (parse_side(reading, value, writable, argument, message) < 0)
        return -1;
    reading->given[at] = true;
    *side = (wm_window_side_t){.layout.data = message->buffer.data};
    if (reading->remote)
        return 0;
    if (message->buffer.nbytes == 0)
        ;
    else if (message->user != NULL) {
        code = find_parts(message->type, message->count,
                          (MPI_Aint)message->extent, message->user, argument,
                          &parts);
        if (code == 0) {
            code = take_typemap(&parts, &side->layout);
            wm_py_typemap_free(&parts);
        }
    }
    else if (message->buffer.pattern != NULL) {
        const wm_pattern_t *pattern = message->buffer.pattern;
        wm_typemap_t of = {.parts = (wm_strided_t *)pattern->parts,
                           .count = pattern->count};
        if (!wm_pattern_is_strided(pattern))
            return wm_py_fail(PyExc_ValueError,
                              "%s: give an array without gaps", argument);
        code = take_typemap(&of, &side->layout);
    }
    return code;
}

void
wm_py_reading_release(wm_py_reading_t *reading)
{
    free(reading->call.layout.parts);
    for (int i = 0; i < 3; ++i) {
        if (!reading->given[i])
            continue;
        free(reading->sides[i].layout.parts);
        if (reading->sides[i].buffer.release != NULL)
            reading->sides[i].buffer.release(reading->sides[i].buffer.owner);
        wm_py_message_release(&reading->messages[i]);
    }
}

// --- the target -----------------------------------------------------------

static int
read_number(PyObject *value, const char *what, long long *number)
{
    PyObject *index = PyNumber_Index(value);
    if (index == NULL) {
        PyErr_Clear();
        return wm_py_fail(PyExc_TypeError,
                          "target: the %s is not an integer: give a "
                          "displacement, or [displacement, count, datatype]",
                          what);
    }
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    return overflow == 0
               ? 0
               : wm_py_fail(PyExc_OverflowError,
                            "target: the %s does not fit 63 bits", what);
}

static int
read_target_type(const wm_py_reading_t *reading, PyObject *value,
                 wm_py_window_target_t *target)
{
    wm_extent_t of;
    PyObject *made = PyUnicode_Check(value)
                         ? wm_py_mpi_datatype_from_code(value)
                         : Py_NewRef(value);
    if (made == NULL)
        return -1;
    int code = wm_py_mpi_datatype(made, "target", &target->type);
    if (code == 0 && target->type == MPI_DATATYPE_NULL)
        code = wm_py_mpi_fail(MPI_ERR_TYPE,
                              "target: the datatype is MPI.DATATYPE_NULL, or "
                              "was freed: give a datatype");
    if (code == 0)
        code = wm_py_datatype_measure(target->type, "target", &of);
    if (code == 0) {
        if (keeps_gaps(reading, target->type))
            of.size = of.high = of.extent;
        target->of = of;
        target->named = true;
        target->gaps = !keeps_gaps(reading, target->type)
                       && !wm_py_datatype_is_dense(target->type);
    }
    Py_DECREF(made);
    return code;
}

// Reads displacement, count and datatype; what is not given is the origin's.
static int
read_target(const wm_py_reading_t *reading, PyObject *value,
            const wm_message_t *origin, wm_py_window_target_t *target)
{
    long long count;
    *target = (wm_py_window_target_t){
        .count = origin->count,
        .type = origin->type,
        .of = {.size = (MPI_Count)origin->size,
               .high = (MPI_Aint)origin->size,
               .extent = (MPI_Aint)origin->extent},
        .gaps = origin->datatype != NULL && origin->count > 0
                && !keeps_gaps(reading, origin->type)
                && !wm_py_datatype_is_dense(origin->type),
    };
    if (target->gaps
        && wm_py_datatype_measure(origin->type, "origin", &target->of) < 0)
        return -1;
    if (value == NULL || value == Py_None)
        return 0;
    if (!PyList_Check(value) && !PyTuple_Check(value))
        return read_number(value, "displacement", &target->displacement);
    Py_ssize_t length = PySequence_Fast_GET_SIZE(value);
    PyObject **items = PySequence_Fast_ITEMS(value);
    if (length > 3)
        return wm_py_fail(PyExc_ValueError,
                          "target: expected [displacement, count, datatype], "
                          "not %zd items",
                          length);
    if (length > 0
        && read_number(items[0], "displacement", &target->displacement) < 0)
        return -1;
    if (length > 2 && items[2] != Py_None
        && read_target_type(reading, items[2], target) < 0)
        return -1;
    if (length > 1 && items[1] != Py_None) {
        if (read_number(items[1], "count", &count) < 0)
            return -1;
        if (count < 0)
            return wm_py_mpi_fail(MPI_ERR_COUNT,
                                  "target: the count is %lld, and must be 0 "
                                  "or more",
                                  count);
        target->count = count;
    }
    return 0;
}

int
wm_py_reading_refuse_range(const wm_py_reading_t *reading,
                           const wm_py_window_target_t *target)
{
    const wm_window_part_t *part =
        &reading->window->parts[reading->call.target];
    if (reading->window->dynamic)
        return wm_py_mpi_fail(
            MPI_ERR_RMA_RANGE,
            "%s: %lld elements of %lld bytes from address %#llx on are not "
            "within the array that rank %d has attached there",
            reading->name, (long long)target->count,
            (long long)target->of.size,
            (unsigned long long)target->displacement, reading->call.target);
    return wm_py_mpi_fail(
        MPI_ERR_RMA_RANGE,
        "%s: %lld elements of %lld bytes at displacement %lld (of %lld bytes "
        "each) are not within the %llu bytes that rank %d gives to the window",
        reading->name, (long long)target->count, (long long)target->of.size,
        target->displacement, (long long)part->unit,
        (unsigned long long)part->nbytes, reading->call.target);
}

// Finds the memory of the target in this process, and an offset there. Returns
// 1 if no GPU memory is attached at the address.
static int
find_memory(wm_py_reading_t *reading, const wm_py_window_target_t *target,
            char **memory, uint64_t *nbytes, uint64_t *at)
{
    wm_window_t *window = reading->window;
    const wm_window_part_t *part = &window->parts[reading->call.target];
    long long offset;
    wm_error_t err;
    int found;
    *memory = part->memory;
    *nbytes = part->nbytes;
    if (!window->dynamic) {
        if (__builtin_mul_overflow(target->displacement, part->unit, &offset)
            || offset < 0 || (uint64_t)offset > part->nbytes)
            return wm_py_reading_refuse_range(reading, target);
        *at = (uint64_t)offset;
        return 0;
    }
    WM_PY_UNLOCKED({
        wm_lock(&window->lock);
        found = wm_window_find_attached(window, reading->call.target,
                                        (uint64_t)target->displacement, memory,
                                        nbytes, at, &err);
        pthread_mutex_unlock(&window->lock);
    });
    return found < 0 ? wm_py_result(found, &err) : !found;
}

int
wm_py_reading_gaps(wm_py_reading_t *reading, char *data)
{
    const wm_py_window_target_t *target = &reading->target;
    wm_typemap_t parts;
    if (find_parts(target->type, target->count, target->of.extent, data,
                   "target", &parts)
        < 0)
        return -1;
    int code = take_typemap(&parts, &reading->call.layout);
    wm_py_typemap_free(&parts);
    return code;
}

// Finds the target's memory in this process, and checks that it is within the
// window. Returns 1 if it is not ours.
int
wm_py_reading_place(wm_py_reading_t *reading,
                    const wm_py_window_target_t *target)
{
    wm_window_call_t *call = &reading->call;
    uint64_t nbytes, at;
    char *memory;
    if (call->nbytes == 0)
        return 0;
    int found = find_memory(reading, target, &memory, &nbytes, &at);
    if (found != 0)
        return found;
    call->layout.data = memory + at;
    if (!target->gaps)
        return call->nbytes <= nbytes - at
                   ? 0
                   : wm_py_reading_refuse_range(reading, target);
    return wm_py_elements_fit(&target->of, 0, (Py_ssize_t)target->count,
                              (size_t)at, (size_t)(nbytes - at))
               ? wm_py_reading_gaps(reading, call->layout.data)
               : wm_py_reading_refuse_range(reading, target);
}

// Reads the target of a call whose origin, or result, was read.
int
wm_py_reading_target(wm_py_reading_t *reading, PyObject *value,
                     const wm_message_t *origin, wm_py_window_target_t *target)
{
    if (read_target(reading, value, origin, target) < 0)
        return -1;
    size_t nbytes;
    if (__builtin_mul_overflow(target->count, target->of.size, &nbytes)
        || nbytes != origin->buffer.nbytes)
        return wm_py_fail(
            PyExc_ValueError,
            "%s: target: the array on this side has %zu bytes, and there are "
            "%lld elements of %lld bytes: give both the same size",
            reading->name, origin->buffer.nbytes, (long long)target->count,
            (long long)target->of.size);
    reading->call.nbytes = nbytes;
    return 0;
}

// --- operations -----------------------------------------------------------

// Finds the number of the elements of a datatype.
static int
find_type_of(MPI_Datatype datatype, wm_reduce_type_t *type)
{
    MPI_Datatype element = wm_py_datatype_element(datatype);
    return element != MPI_DATATYPE_NULL && wm_reducible_element(element, type)
               ? 0
               : -1;
}

// Finds the number of the elements of an argument.
static int
find_type(const wm_message_t *message, wm_reduce_type_t *type)
{
    const wm_owner_t *owner = message->buffer.owner;
    if (message->datatype == NULL && owner != NULL && owner->viewed) {
        *type = (wm_reduce_type_t)owner->view.array.dtype;
        return 0;
    }
    return find_type_of(message->type, type);
}

// Refuses a target whose elements are of another type.
static int
check_types(const wm_py_reading_t *reading, wm_reduce_type_t type)
{
    wm_reduce_type_t other;
    if (!reading->target.named
        || find_type_of(reading->target.type, &other) < 0 || other == type)
        return 0;
    return wm_py_mpi_fail(MPI_ERR_TYPE,
                          "%s: the elements here are %s, and those of the "
                          "target %s: give both the same type",
                          reading->name, wm_reducible_type_name(type),
                          wm_reducible_type_name(other));
}

// Names elements of which only the size counts.
wm_reduce_type_t
wm_py_reading_type_of_size(size_t nbytes, size_t size)
{
    return size == 2 && nbytes % 2 == 0   ? WM_REDUCE_UINT16
           : size == 4 && nbytes % 4 == 0 ? WM_REDUCE_UINT32
           : size == 8 && nbytes % 8 == 0 ? WM_REDUCE_UINT64
                                          : WM_REDUCE_UINT8;
}

int
wm_py_reading_update(wm_py_reading_t *reading, PyObject *given,
                     const wm_message_t *elements)
{
    MPI_Op op = MPI_SUM;
    wm_window_call_t *call = &reading->call;
    if (given != NULL && given != Py_None
        && wm_py_mpi_op(given, "op", &op) < 0)
        return -1;
    bool plain = op == MPI_REPLACE || op == MPI_NO_OP;
    bool known = find_type(elements, &call->type) == 0;
    if (known && check_types(reading, call->type) < 0)
        return -1;
    if (plain) {
        call->op = op == MPI_REPLACE ? WM_REDUCE_REPLACE : WM_REDUCE_NO_OP;
        if (!known)
            call->type = wm_py_reading_type_of_size(call->nbytes,
                                                    elements->size);
        else
            call->type = wm_py_reading_type_of_size(
                call->nbytes, wm_reducible_size(call->type));
    }
    else {
        call->op = (wm_reduce_op_t)wm_reducible_op(op);
        if (!known || !wm_reducible_takes(call->type, call->op))
            return wm_py_mpi_fail(
                MPI_ERR_OP,
                "%s: op: MPI has no such operation for these elements; a "
                "window takes MPI's own operations alone",
                reading->name);
    }
    return 0;
}
