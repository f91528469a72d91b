// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/specification.h"

#include <limits.h>

#include "cuda/settings.h"
#include "comm/message/element.h"
#include "python/array/py_array.h"
#include "python/message/datatype.h"
#include "python/message/elements.h"
#include "python/message/owner.h"
#include "python/message/raw.h"
#include "python/view/view.h"

// An element that MPI does not pack may have this many parts.
#define MOST_PARTS (1 << 16)

// The items of a specification; borrowed.
typedef struct {
    PyObject *array, *count, *displacement, *datatype;
} parts_t;

static int
split(PyObject *object, const char *argument, parts_t *parts)
{
    *parts = (parts_t){.array = object};
    if (!PyList_Check(object) && !PyTuple_Check(object))
        return 0;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(object);
    PyObject **items = PySequence_Fast_ITEMS(object);
    if (length < 1 || length > 4)
        return wm_py_fail(
            PyExc_ValueError,
            "%s: expected [array, count, datatype], not %zd items", argument,
            length);
    parts->array = items[0];
    if (PyLong_Check(items[0]) || PyFloat_Check(items[0]))
        return wm_py_fail(
            PyExc_TypeError,
            "%s: a list or tuple is [array, count, datatype], and holds no "
            "data: give numpy.array() of the numbers, or the list to a "
            "lower-case call, such as send()",
            argument);
    if (length == 2)
        *(wm_py_mpi_names_datatype(items[1]) ? &parts->datatype
                                             : &parts->count) = items[1];
    if (length > 2) {
        parts->count = items[1];
        parts->datatype = items[length - 1];
    }
    if (length == 4)
        parts->displacement = items[2];
    if (parts->count != NULL && PyTuple_Check(parts->count)
        && PyTuple_GET_SIZE(parts->count) == 2 && length < 4) {
        parts->displacement = PyTuple_GET_ITEM(parts->count, 1);
        parts->count = PyTuple_GET_ITEM(parts->count, 0);
    }
    if (parts->count == Py_None)
        parts->count = NULL;
    if (parts->displacement == Py_None)
        parts->displacement = NULL;
    if (parts->datatype == Py_None)
        parts->datatype = NULL;
    if (parts->datatype != NULL && !wm_py_mpi_names_datatype(parts->datatype))
        return wm_py_fail(PyExc_TypeError,
                          "%s: the datatype must be an MPI.Datatype or a type "
                          "code, not %.100s (a list is [array, count, "
                          "datatype]; send() takes any object)",
                          argument, Py_TYPE(parts->datatype)->tp_name);
    return 0;
}

static int
number(PyObject *object, const char *argument, const char *what,
       Py_ssize_t *value)
{
    if (object == NULL)
        return 0;
    Py_ssize_t result = PyNumber_AsSsize_t(object, PyExc_OverflowError);
    if (result == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError,
                         "%s: the %s is not an integer (a list is [array, "
                         "count, datatype])",
                         argument, what);
        else if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Format(PyExc_OverflowError,
                         "%s: the %s %.50S does not fit 63 bits", argument,
                         what, object);
        return -1;
    }
    if (result < 0)
        return wm_py_fail(PyExc_ValueError,
                          "%s: the %s is %zd, and must be 0 or more", argument,
                          what, result);
    *value = result;
    return 0;
}

// Reads raw host bytes whose MPI type is given or found: only MPI knows
// elements without a dtype of ours (long double, structures, text). Returns 0
// with the buffer filled, or -1, perhaps with an exception.
static int
look_raw(const parts_t *parts, bool writable, const char *argument,
         wm_owner_t *owner, wm_message_t *message)
{
    wm_error_t err;
    if (wm_py_raw_read(parts->array, parts->datatype, writable, &owner->raw,
                       &message->datatype)
        < 0)
        return -1;
    if (writable && wm_py_raw_is_copy(&owner->raw))
        return wm_py_view_refuse_copy(parts->array, argument);
    wm_buffer_t *buffer = &message->buffer;
    wm_view_t view = {.array.data = owner->raw.buf};
    int code = wm_pointer_describe(owner->raw.buf, &view.memory, &err);
    if (wm_py_result(code, &err) < 0
        || wm_py_view_ask_producer(parts->array, argument, &view) < 0)
        return -1;
    buffer->data = owner->raw.buf;
    buffer->memory = view.memory;
    buffer->producer = view.producer;
    return wm_buffer_on_device(buffer) ? -1 : 0;
}

// Reads the array as memory, else as raw host bytes. If both fail, the first
// error stays.
static int
look(const parts_t *parts, bool writable, const char *argument,
     wm_owner_t *owner, wm_message_t *message, size_t *length)
{
    wm_buffer_t *buffer = &message->buffer;
    if (wm_py_view_parse(parts->array, writable, argument, &owner->view)
        == 0) {
        wm_view_t *view = &owner->view;
        owner->viewed = true;
        wm_py_array_keep_object(parts->array, view);
        buffer->data = view->array.data;
        buffer->memory = view->memory;
        buffer->producer = view->producer;
        buffer->order = view->producer.order;
        *length = wm_array_nbytes(&view->array);
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_BufferError) // for example read-only
        || PyErr_ExceptionMatches(wm_py_state->cuda_error)
        || wm_py_view_is_peculiar(
            parts->array)) // bytes do not say what it means
        return -1;
    PyObject *refusal = PyErr_GetRaisedException();
    PyErr_SetRaisedException(Py_NewRef(refusal));
    // mpi4py does not ask the code of an object with the buffer protocol.
    bool reads = wm_py_drop_refusal() == 0
                 || (PyObject_CheckBuffer(parts->array)
                     && PyErr_ExceptionMatches(PyExc_Exception)
                     && !PyErr_ExceptionMatches(PyExc_MemoryError));
    PyErr_Clear();
    int code = reads ? look_raw(parts, writable, argument, owner, message)
                     : -1;
    if (code < 0 && !PyErr_Occurred()) {
        PyErr_SetRaisedException(refusal);
        return -1;
    }
    Py_DECREF(refusal);
    *length = (size_t)owner->raw.len;
    return code;
}

// Returns true for MPI.BOTTOM without elements.
static bool
is_nothing(const parts_t *parts)
{
    return wm_py_mpi_is_bottom(parts->array) && parts->datatype != NULL
           && (parts->count == NULL || PyObject_Not(parts->count) == 1);
}

// Keeps the pattern. Returns -1 if it is NULL because of an exception.
static int
keep(wm_pattern_t *pattern, wm_message_t *message)
{
    wm_owner_t *owner = message->buffer.owner;
    message->buffer.pattern = owner->pattern = pattern;
    return pattern == NULL && PyErr_Occurred() ? -1 : 0;
}

// Describes `count` elements of a given datatype.
static int
spread(const wm_extent_t *of, bool writable, const char *argument,
       wm_message_t *message)
{
    wm_buffer_t *buffer = &message->buffer;
    wm_typemap_t parts;
    if (buffer->nbytes == 0)
        return 0;
    // MPI does not pack larger ones: its calls count bytes in int.
    bool large = of->size > INT_MAX;
    bool decoded = wm_py_datatype_parts(message->type, message->count,
                                        of->extent, buffer->data,
                                        large ? MOST_PARTS : 1, &parts);
    if (decoded)
        buffer->data = parts.parts[0].data;
    int code = keep(
        decoded ? wm_py_elements_in_parts(&parts, writable, argument)
                : wm_py_elements_typed(message->type, of, message->count,
                                       buffer->data, argument),
        message);
    wm_py_typemap_free(&parts);
    return code;
}

// Sets `user` instead if the datatype has gaps and the caller asks for bytes.
// `left` is the number of bytes available.
static void
close_up(const wm_extent_t *of, size_t left, wm_message_t *message)
{
    if (wm_py_datatype_is_dense(message->type))
        return;
    message->user = message->buffer.data;
    message->whole = of->low >= 0 && of->high <= of->extent
                     && (size_t)message->count <= left / message->extent;
}

// Returns the type of a code; raises KeyError, as mpi4py does, if there is
// none.
static PyObject *
type_of_code(PyObject *code, const char *argument)
{
    PyObject *type = wm_py_mpi_datatype_from_code(code);
    if (type == NULL && PyErr_ExceptionMatches(PyExc_ValueError))
        PyErr_Format(PyExc_KeyError, "%s: MPI has no datatype for the code %R",
                     argument, code);
    return type;
}

// Reads the numbers that are given, and finds the type: given, found, or that
// of the array's elements. A count counts units of `inner` elements.
static int
measure(const parts_t *parts, const char *argument, wm_message_t *message,
        Py_ssize_t *count, Py_ssize_t *displacement, wm_extent_t *of,
        MPI_Count *inner)
{
    const wm_owner_t *owner = message->buffer.owner;
    *of = (wm_extent_t){.size = 1, .high = 1, .extent = 1};
    *inner = 1;
    if (number(parts->count, argument, "count", count) < 0
        || number(parts->displacement, argument, "displacement", displacement)
               < 0)
        return -1;
    if (parts->datatype != NULL)
        message->datatype = PyUnicode_Check(parts->datatype)
                                ? type_of_code(parts->datatype, argument)
                                : Py_NewRef(parts->datatype);
    else if (message->datatype == NULL) {
        if (owner->viewed) {
            wm_dtype_t dtype = owner->view.array.dtype;
            message->type = wm_py_datatype_of(dtype);
            if (parts->count != NULL || parts->displacement != NULL)
                *inner = wm_py_view_inner(parts->array, &owner->view.array);
            of->size = wm_dtype_info(dtype)->itemsize * *inner;
            of->high = of->extent = of->size;
        }
        return 0;
    }
    if (message->datatype == NULL
        || wm_py_mpi_datatype(message->datatype, argument, &message->type) < 0)
        return -1;
    if (message->type == MPI_DATATYPE_NULL) {
        if (parts->count != NULL && *displacement == 0)
            return wm_py_mpi_fail(MPI_ERR_TYPE,
                                  "%s: the datatype is MPI.DATATYPE_NULL, or "
                                  "was freed: give a datatype",
                                  argument);
        return wm_py_fail(
            PyExc_ValueError,
            "%s: the datatype is MPI.DATATYPE_NULL, or was freed, and has no "
            "size to count with: give a datatype",
            argument);
    }
    return wm_py_datatype_measure(message->type, argument, of);
}

// Fills the facts about elements that both ends compare.
static void
tell_elements(bool writable, wm_message_t *message)
{
    wm_buffer_t *buffer = &message->buffer;
    MPI_Datatype type = message->type;
    buffer->numbers = writable && message->size > 1
                      && (message->datatype == NULL
                          || wm_element_is_known(wm_element_number(type)));
    if (!wm_setting_is_on(WM_SETTING_CHECK) || type == MPI_DATATYPE_NULL)
        return;
    if (message->datatype != NULL)
        type = wm_py_datatype_element(type);
    int64_t number = type != MPI_DATATYPE_NULL ? wm_element_number(type) : 0;
    if (wm_element_is_known(number) && wm_element_count(number, 2) < 2)
        buffer->element = (uint8_t)number;
}

// The bytes in front of the begin of a buffer, the bytes from there on, and
// the bytes that it declares. As in mpi4py, a displacement is within the
// declared bytes.
typedef struct {
    size_t before, length, told;
    bool address; // an address: the declared length does not limit
} room_t;

// Returns the room at an address: all memory, or a GPU's allocation if it is
// known.
static room_t
room_of_address(const wm_buffer_t *buffer, size_t told)
{
    const wm_pointer_t *memory = &buffer->memory;
    uintptr_t at = (uintptr_t)buffer->data;
    return wm_buffer_on_device(buffer) && memory->exportable
                   && memory->size > 0
               ? (room_t){at - memory->base, memory->base + memory->size - at,
                          told, true}
               : (room_t){at - 1, PY_SSIZE_T_MAX - at, told, true};
}

// Applies count, displacement and type: finds the bytes of the memory.
// `strided` describes an array that is not contiguous. `flat` asks for memory
// that MPI itself can walk if the datatype has gaps.
static int
apply(const parts_t *parts, const room_t *room, wm_strided_t *strided,
      bool writable, bool flat, const char *argument, wm_message_t *message)
{
    Py_ssize_t displacement = 0, count = -1;
    size_t length = room->length;
    wm_extent_t of;
    MPI_Count inner;
    if (measure(parts, argument, message, &count, &displacement, &of, &inner)
        < 0)
        return -1;
    if (strided != NULL
        && (of.low != 0 || of.high != of.size || of.extent != of.size))
        return wm_py_fail(
            PyExc_ValueError,
            "%s: the datatype has gaps, and the array is not contiguous; give "
            "a datatype without gaps, or a contiguous array",
            argument);
    if (of.extent <= 0 && (displacement > 0 || (count < 0 && length > 0)))
        return wm_py_fail(
            PyExc_ValueError,
            "%s: the datatype's extent is %lld, so no count can be found and "
            "no displacement used; give a count, without a displacement",
            argument, (long long)of.extent);
    size_t step = of.extent > 0 ? (size_t)of.extent : 1;
    size_t left = length - (size_t)displacement * step;
    size_t told = room->address ? room->told : length;
    if (displacement > 0 && (size_t)displacement > told / step)
        return wm_py_fail(PyExc_ValueError,
                          "%s: displacement %zd is beyond the end of the "
                          "buffer of %zu bytes",
                          argument, displacement, told);
    if (count < 0 && left % step != 0)
        return wm_py_fail(PyExc_ValueError,
                          "%s: %zu bytes are not a whole number of elements "
                          "of %zu bytes; give a count",
                          argument, left, step);
    if (count < 0)
        count = (Py_ssize_t)(left / step);
    if (!wm_py_elements_fit(&of, displacement, count, room->before, length))
        return wm_py_fail(
            PyExc_ValueError,
            "%s: %zd elements of %zu bytes do not fit the %s of %zu bytes%s",
            argument, count, step,
            room->address ? "allocation, from the address on," : "buffer",
            left,
            of.low < 0 ? ": the datatype also has bytes before its start, so "
                         "give a displacement, or an address within"
                       : "");
    message->buffer.nbytes = (size_t)count * (size_t)of.size;
    message->size = (size_t)(of.size / inner);
    message->extent = step / (size_t)inner;
    message->count = count * inner;
    tell_elements(writable, message);
    if (strided != NULL) {
        if (wm_py_elements_slice(strided, &of, displacement, count, argument)
            < 0)
            return -1;
        message->buffer.data = strided->data;
        return count == 0
                   ? 0
                   : keep(wm_py_elements_strided(strided, writable, argument),
                          message);
    }
    message->buffer.data += displacement * of.extent;
    if (message->datatype == NULL)
        return 0;
    if (!flat)
        return spread(&of, writable, argument, message);
    close_up(&of, left, message);
    return 0;
}

// Applies a datatype with absolute addresses.
static int
follow(const parts_t *parts, bool writable, bool flat, const char *argument,
       wm_message_t *message)
{
    Py_ssize_t displacement = 0, count = 0;
    wm_extent_t of;
    MPI_Count inner;
    if (parts->datatype == NULL || flat)
        return wm_py_fail(PyExc_TypeError,
                          "%s: MPI.BOTTOM %s; give the array itself", argument,
                          flat ? "is not supported by this call"
                               : "needs a count and a datatype");
    if (measure(parts, argument, message, &count, &displacement, &of, &inner)
        < 0)
        return -1;
    if (wm_py_elements_absolute(&of, message->type, displacement, count,
                                argument, &message->buffer)
        < 0)
        return -1;
    message->size = (size_t)of.size;
    message->extent = of.extent > 0 ? (size_t)of.extent : 1;
    message->count = count;
    if (message->buffer.nbytes == 0)
        return 0;
    return spread(&of, writable, argument, message);
}

// Returns 1 with the strides if the array has gaps, 0 if it has none; -1 with
// an exception.
static int
look_at_strides(const wm_owner_t *owner, bool flat, const char *argument,
                wm_strided_t *strided)
{
    const wm_array_t *array = &owner->view.array;
    if (!owner->viewed || wm_array_is_contiguous(array)
        || wm_array_is_f_contiguous(array))
        return 0;
    if (!flat && wm_strided_from_array(strided, array))
        return 1;
    return wm_py_fail(PyExc_ValueError,
                      "%s: the array is not contiguous, which this call does "
                      "not support; give a contiguous copy (.copy())",
                      argument);
}

static int
make_empty(wm_message_t *message)
{
    wm_owner_t *owner = wm_py_owner_new();
    *message = (wm_message_t){.type = MPI_BYTE, .size = 1, .extent = 1};
    message->buffer.owner = owner;
    message->buffer.release = wm_py_owner_release;
    message->buffer.memory.device = -1;
    return owner != NULL ? 0 : -1;
}

static int
parse(PyObject *object, bool writable, wm_with_gaps_t taken,
      const char *argument, wm_message_t *message)
{
    parts_t parts;
    wm_strided_t strided;
    if (PyList_Check(object)) { // foreign code may change it meanwhile
        PyObject *kept = PyList_AsTuple(object);
        int code = kept != NULL
                       ? parse(kept, writable, taken, argument, message)
                       : -1;
        Py_XDECREF(kept);
        return code;
    }
    wm_py_owner_release_waiting();
    if (split(object, argument, &parts) < 0)
        return -1;
    if (wm_py_mpi_is_in_place(parts.array))
        return wm_py_fail(PyExc_TypeError,
                          "%s: give the array itself, not MPI.IN_PLACE",
                          argument);
    if (make_empty(message) < 0)
        return -1;
    wm_owner_t *owner = message->buffer.owner;
    room_t room = {0};
    bool nothing = parts.array == Py_None || is_nothing(&parts);
    if (!nothing && wm_py_mpi_is_bottom(parts.array)) {
        if (follow(&parts, writable, taken != WM_GAPS_ALL, argument, message)
            == 0)
            return 0;
        wm_py_message_release(message);
        return -1;
    }
    int code = nothing ? 0
                       : look(&parts, writable, argument, owner, message,
                              &room.length);
    if (code == 0 && parts.count != NULL && wm_py_mpi_is_address(parts.array))
        room = room_of_address(&message->buffer, room.length);
    bool flat = taken != WM_GAPS_ALL && taken != WM_GAPS_OF_ANY_ARRAYS
                && !wm_buffer_on_device(&message->buffer);
    int gaps = code < 0 ? -1
                        : look_at_strides(owner, flat || taken == WM_GAPS_NONE,
                                          argument, &strided);
    if (gaps >= 0
        && apply(&parts, &room, gaps ? &strided : NULL, writable,
                 flat || taken > WM_GAPS_OF_GPUS, argument, message)
               == 0)
        return 0;
    if (!nothing)
        wm_py_raw_judge(parts.array, writable);
    wm_py_message_release(message);
    return -1;
}

// Warns once if GPU memory is used with a thread level of MPI at which no
// message progresses between calls. Returns -1 if the warning raises.
static int
warn_of_thread_level(wm_message_t *message)
{
    static bool warned;
    if (warned || !wm_buffer_on_device(&message->buffer))
        return 0;
    warned = true;
    PyObject *none = wm_py_cold("warpmpi._comm", "warn_of_thread_level", "()");
    Py_XDECREF(none);
    if (none == NULL)
        wm_py_message_release(message);
    return none != NULL ? 0 : -1;
}

int
wm_py_message_parse(PyObject *object, bool writable, const char *argument,
                    wm_message_t *message)
{
    return wm_py_message_parse_gaps(object, writable, argument, WM_GAPS_ALL,
                                    message);
}

int
wm_py_message_parse_for(int rank, PyObject *object, bool writable,
                        const char *argument, wm_message_t *message)
{
    if (rank == MPI_PROC_NULL)
        return wm_py_message_of_none(NULL, message);
    if (object != Py_None)
        return wm_py_message_parse(object, writable, argument, message);
    return wm_py_fail(PyExc_TypeError,
                      "%s: None is not an array: give an array, or [None, 0, "
                      "datatype] for an empty message",
                      argument);
}

int
wm_py_message_parse_gaps(PyObject *object, bool writable, const char *argument,
                         wm_with_gaps_t gaps, wm_message_t *message)
{
    return parse(object, writable, gaps, argument, message) < 0
               ? -1
               : warn_of_thread_level(message);
}

void
wm_py_message_widen(wm_message_t *message)
{
    message->size = message->extent;
    message->buffer.nbytes = (size_t)message->count * message->extent;
}

void
wm_py_message_scatter(wm_message_t *message, wm_pattern_t *pattern,
                      size_t nbytes)
{
    wm_owner_t *owner = message->buffer.owner;
    wm_pattern_t *former = owner->pattern;
    message->buffer.nbytes = nbytes;
    (void)!keep(pattern, message);
    wm_py_elements_free(former);
}

wm_buffer_t
wm_py_message_detach(wm_message_t *message)
{
    wm_buffer_t buffer = message->buffer;
    message->buffer.release = NULL;
    return buffer;
}

int
wm_py_message_again(PyObject *array, const char *argument,
                    const wm_message_t *message, wm_buffer_t *buffer)
{
    wm_owner_t *owner = message->buffer.owner;
    wm_producer_t producer = message->buffer.producer;
    bool follows = owner->viewed
                   && (producer.kind != WM_PRODUCER_NONE
                       || wm_buffer_on_device(&message->buffer));
    wm_py_owner_release_waiting();
    if (follows
        && wm_py_view_refresh(array, argument, owner->view.array.data,
                              &producer)
               < 0)
        return -1;
    wm_py_owner_retain(owner);
    *buffer = message->buffer;
    buffer->producer = producer;
    buffer->order = follows ? producer.order : buffer->order;
    return 0;
}

int
wm_py_message_of_none(PyObject *keep, wm_message_t *message)
{
    if (make_empty(message) < 0)
        return -1;
    wm_py_message_keep(message, keep);
    return 0;
}

void
wm_py_message_keep(wm_message_t *message, PyObject *object)
{
    wm_owner_t *owner = message->buffer.owner;
    Py_XSETREF(owner->keep, Py_XNewRef(object));
}

int
wm_py_message_traverse(const wm_message_t *message, visitproc visit, void *arg)
{
    Py_VISIT(message->datatype);
    return wm_py_owner_traverse(&message->buffer, visit, arg);
}

void
wm_py_message_release(wm_message_t *message)
{
    wm_buffer_release(&message->buffer);
    Py_CLEAR(message->datatype);
}

PyObject *
wm_py_message_array(PyObject *buffer)
{
    bool listed = PyList_Check(buffer) || PyTuple_Check(buffer);
    return listed && PySequence_Fast_GET_SIZE(buffer) > 0
               ? PySequence_Fast_GET_ITEM(buffer, 0)
               : buffer;
}
