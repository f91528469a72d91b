// SPDX-License-Identifier: BSD-3-Clause
// The calls of wm.Win that move data.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/rma/window_attach.h"
#include "comm/rma/window_run.h"
#include "comm/rma/window_sync.h"
#include "python/device/py_stream.h"
#include "python/message/datatype.h"
#include "python/message/owner.h"
#include "python/message/specification.h"
#include "python/request/py_request.h"
#include "python/rma/py_window.h"

#define MOST_PARTS (1 << 16) // of a datatype with gaps

// The target of a call: displacement, count and datatype.
typedef struct {
    long long displacement;
    MPI_Count count;
    MPI_Datatype type;
    MPI_Count size;
    MPI_Aint extent;
    bool gaps;
} target_t;

// A call that is being read.
typedef struct {
    const char *name;
    wm_py_window_t *self;
    wm_window_t *window;
    bool remote; // the engine of the target serves
    target_t target;
    wm_window_call_t call;
    wm_message_t messages[3]; // origin, compare, result
    bool given[3];
    wm_window_side_t sides[3];
} reading_t;

enum { ORIGIN, COMPARE, RESULT };

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
                      "equally far apart: give one with fewer blocks",
                      argument, MOST_PARTS);
}

// Reads an argument. Returns 0, or -1 with an exception.
static int
read_side(reading_t *reading, int at, PyObject *value, bool writable,
          const char *argument)
{
    wm_message_t *message = &reading->messages[at];
    wm_window_side_t *side = &reading->sides[at];
    wm_typemap_t parts;
    int code = 0;
    if (wm_py_message_parse_gaps(
            value, writable, argument,
            reading->remote ? WM_GAPS_ALL : WM_GAPS_OF_ANY_ARRAYS, message)
        < 0)
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

static void
release_reading(reading_t *reading)
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
    *number = PyLong_AsLongLong(index);
    Py_DECREF(index);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
read_target_type(PyObject *value, target_t *target)
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
        target->size = of.size;
        target->extent = of.extent;
        target->gaps = !wm_py_datatype_is_dense(target->type);
    }
    Py_DECREF(made);
    return code;
}

// Reads displacement, count and datatype; what is not given is the origin's.
static int
read_target(PyObject *value, const wm_message_t *origin, target_t *target)
{
    long long count;
    *target = (target_t){
        .count = origin->count,
        .type = origin->type,
        .size = (MPI_Count)origin->size,
        .extent = (MPI_Aint)origin->extent,
        .gaps = origin->datatype != NULL && origin->count > 0
                && !wm_py_datatype_is_dense(origin->type),
    };
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
        && read_target_type(items[2], target) < 0)
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

static int
refuse_range(const reading_t *reading, const target_t *target)
{
    const wm_window_part_t *part =
        &reading->window->parts[reading->call.target];
    if (reading->window->dynamic)
        return wm_py_mpi_fail(
            MPI_ERR_RMA_RANGE,
            "%s: %lld elements of %lld bytes from address %#llx on are not "
            "within the array that rank %d has attached there",
            reading->name, (long long)target->count, (long long)target->size,
            (unsigned long long)target->displacement, reading->call.target);
    return wm_py_mpi_fail(
        MPI_ERR_RMA_RANGE,
        "%s: %lld elements of %lld bytes at displacement %lld (of %lld bytes "
        "each) are not within the %llu bytes that rank %d gives to the window",
        reading->name, (long long)target->count, (long long)target->size,
        target->displacement, (long long)part->unit,
        (unsigned long long)part->nbytes, reading->call.target);
}

// Finds the memory of the target in this process, and an offset there. Returns
// 1 if no GPU memory is attached at the address.
static int
find_memory(reading_t *reading, const target_t *target, char **memory,
            uint64_t *nbytes, uint64_t *at)
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
            return refuse_range(reading, target);
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

// Finds the target's memory in this process, and checks that it is within the
// window. Returns 1 if it is not ours.
static int
place_target(reading_t *reading, const target_t *target)
{
    wm_window_call_t *call = &reading->call;
    uint64_t nbytes, at;
    char *memory;
    wm_typemap_t parts;
    if (call->nbytes == 0)
        return 0;
    int found = find_memory(reading, target, &memory, &nbytes, &at);
    if (found != 0)
        return found;
    call->layout.data = memory + at;
    if (!target->gaps)
        return call->nbytes <= nbytes - at ? 0 : refuse_range(reading, target);
    if (find_parts(target->type, target->count, target->extent,
                   call->layout.data, "target", &parts)
        < 0)
        return -1;
    char *low = memory, *high = memory;
    wm_py_typemap_bounds(&parts, &low, &high);
    int code = low >= memory && high <= memory + nbytes
                   ? take_typemap(&parts, &call->layout)
                   : refuse_range(reading, target);
    wm_py_typemap_free(&parts);
    return code;
}

// Reads the target of a call whose origin, or result, was read.
static int
find_target(reading_t *reading, PyObject *value, const wm_message_t *origin,
            target_t *target)
{
    if (read_target(value, origin, target) < 0)
        return -1;
    size_t nbytes = (size_t)target->count * (size_t)target->size;
    if (nbytes != origin->buffer.nbytes)
        return wm_py_fail(
            PyExc_ValueError,
            "%s: target: %lld elements of %lld bytes are %zu bytes, and the "
            "array on this side has %zu: give both the same size",
            reading->name, (long long)target->count, (long long)target->size,
            nbytes, origin->buffer.nbytes);
    reading->call.nbytes = nbytes;
    return 0;
}

// --- operations -----------------------------------------------------------

// Finds the kernels' name of the elements of an argument.
static int
find_type(const wm_message_t *message, wm_reduce_type_t *type)
{
    const wm_owner_t *owner = message->buffer.owner;
    wm_reduce_op_t unused;
    if (message->datatype == NULL && owner != NULL && owner->viewed) {
        *type = (wm_reduce_type_t)owner->view.array.dtype;
        return 0;
    }
    MPI_Datatype element = wm_py_datatype_element(message->type);
    const MPI_Op ops[] = {MPI_SUM, MPI_LAND, MPI_MINLOC};
    wm_extent_t of;
    if (element == MPI_DATATYPE_NULL
        || wm_py_datatype_measure(element, "origin", &of) < 0) {
        PyErr_Clear();
        return -1;
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; ++i)
        if (wm_reducible(element, (size_t)of.extent, ops[i], type, &unused))
            return 0;
    return -1;
}

// Names elements of which only the size counts.
static wm_reduce_type_t
type_of_size(size_t nbytes, size_t size)
{
    return size == 2 && nbytes % 2 == 0   ? WM_REDUCE_UINT16
           : size == 4 && nbytes % 4 == 0 ? WM_REDUCE_UINT32
           : size == 8 && nbytes % 8 == 0 ? WM_REDUCE_UINT64
                                          : WM_REDUCE_UINT8;
}

static int
find_update(reading_t *reading, PyObject *given, const wm_message_t *elements)
{
    MPI_Op op = MPI_SUM;
    wm_window_call_t *call = &reading->call;
    if (given != NULL && given != Py_None
        && wm_py_mpi_op(given, "op", &op) < 0)
        return -1;
    bool plain = op == MPI_REPLACE || op == MPI_NO_OP;
    bool known = find_type(elements, &call->type) == 0;
    if (plain) {
        call->op = op == MPI_REPLACE ? WM_REDUCE_REPLACE : WM_REDUCE_NO_OP;
        if (!known)
            call->type = type_of_size(call->nbytes, elements->size);
        else if (wm_reduce_size(call->type) <= 8)
            call->type = type_of_size(call->nbytes,
                                      wm_reduce_size(call->type));
    }
    else {
        int found = wm_reducible_op(op);
        call->op = (wm_reduce_op_t)found;
        if (!known || found >= WM_REDUCE_OPS
            || !wm_reduce_takes(call->type, call->op))
            return wm_py_mpi_fail(
                MPI_ERR_OP,
                "%s: op: MPI has no such operation for these elements; a "
                "window takes MPI's own operations alone",
                reading->name);
    }
    call->size = wm_reduce_size(call->type);
    return 0;
}

// --- calls ----------------------------------------------------------------

static int
begin_unlocked(reading_t *reading, bool completes, wm_error_t *err)
{
    wm_window_t *window = reading->window;
    wm_lock(&window->lock);
    int code = wm_window_begin(window, &reading->call, err);
    if (code == 0 && completes)
        code = wm_window_complete(window, err);
    pthread_mutex_unlock(&window->lock);
    return code;
}

static PyObject *
ended_request(void)
{
    wm_message_t none = {0};
    return wm_py_request_new(wm_op_ended(), MPI_REQUEST_NULL, &none);
}

// Begins a call that was read. `requested`: returns a request.
static PyObject *
begin(reading_t *reading, bool requested)
{
    wm_window_side_t **sides[] = {
        &reading->call.origin, &reading->call.compare, &reading->call.result};
    wm_error_t err;
    int code;
    for (int i = 0; i < 3; ++i)
        if (reading->given[i]) {
            reading->sides[i].buffer = wm_py_message_detach(
                &reading->messages[i]);
            *sides[i] = &reading->sides[i];
        }
    WM_PY_UNLOCKED(code = begin_unlocked(reading, requested, &err));
    if (code < 0)
        return wm_py_raise(&err);
    if (!requested)
        Py_RETURN_NONE;
    wm_window_release_ended(reading->window);
    return ended_request();
}

// The arguments of a call, as they are in a table.
typedef struct {
    const char *name;
    const char *names[6];
    int count, required;
    wm_window_kind_t kind;
    bool requested, single;                // one element
    int compare, result, rank, target, op; // their positions; 0: none
} shape_t;

// Reads the arguments. Returns 1 if the target's memory is not ours.
static int
read_call(reading_t *reading, const shape_t *shape, PyObject **values)
{
    bool gets = shape->kind == WM_WINDOW_GET;
    MPI_Op op = MPI_SUM;
    if (shape->op > 0 && values[shape->op] != NULL
        && values[shape->op] != Py_None
        && wm_py_mpi_op(values[shape->op], "op", &op) < 0)
        return -1;
    bool unread = op == MPI_NO_OP && shape->result > 0;
    const wm_message_t *first = &reading->messages[unread ? RESULT : ORIGIN];
    if ((!unread && read_side(reading, ORIGIN, values[0], gets, "origin") < 0)
        || (shape->compare > 0
            && read_side(reading, COMPARE, values[shape->compare], false,
                         "compare")
                   < 0)
        || (shape->result > 0
            && read_side(reading, RESULT, values[shape->result], true,
                         "result")
                   < 0)
        || find_target(reading, values[shape->target], first, &reading->target)
               < 0)
        return -1;
    int found = reading->remote ? 0 : place_target(reading, &reading->target);
    if (found != 0)
        return found;
    for (int i = 0; i < 3; ++i)
        if (reading->given[i]
            && reading->messages[i].buffer.nbytes != reading->call.nbytes)
            return wm_py_fail(PyExc_ValueError,
                              "%s: the arrays have different sizes: give all "
                              "the same number of elements",
                              reading->name);
    if (shape->compare > 0) {
        reading->call.op = WM_REDUCE_REPLACE;
        reading->call.type = type_of_size(reading->call.nbytes, first->size);
        reading->call.size = wm_reduce_size(reading->call.type);
        if (reading->call.size == reading->call.nbytes)
            return 0;
        return wm_py_fail(PyExc_ValueError,
                          "%s: give arrays of one element of 1, 2, 4 or 8 "
                          "bytes",
                          reading->name);
    }
    if (shape->single && first->count != 1)
        return wm_py_fail(PyExc_ValueError,
                          "%s: the arrays have %lld elements: give arrays of "
                          "one element, or use Get_accumulate",
                          reading->name, (long long)first->count);
    return shape->kind == WM_WINDOW_UPDATE ? find_update(
               reading, shape->op > 0 ? values[shape->op] : NULL, first)
                                           : 0;
}

// --- calls that the target's engine serves --------------------------------

// Fills what is asked for. The parts, with gaps, are the caller's.
static int
fill_remote(reading_t *reading, const shape_t *shape, wm_target_op_t *what)
{
    const target_t *target = &reading->target;
    const wm_window_call_t *call = &reading->call;
    const wm_window_part_t *part = &reading->window->parts[call->target];
    long long at = target->displacement;
    wm_typemap_t parts;
    if (!reading->window->dynamic
        && (__builtin_mul_overflow(at, part->unit, &at) || at < 0
            || (uint64_t)at > part->nbytes
            || (!target->gaps && call->nbytes > part->nbytes - (uint64_t)at)))
        return refuse_range(reading, target);
    *what = (wm_target_op_t){
        .kind = call->kind == WM_WINDOW_PUT   ? WM_TARGET_PUT
                : call->kind == WM_WINDOW_GET ? WM_TARGET_GET
                : shape->compare > 0          ? WM_TARGET_COMPARE
                : shape->result > 0           ? WM_TARGET_FETCH
                                              : WM_TARGET_ACCUMULATE,
        .rank = call->target,
        .at = (uint64_t)at,
        .nbytes = call->nbytes,
        .type = call->type,
        .op = call->op,
        .requested = shape->requested,
    };
    if (!target->gaps || call->nbytes == 0)
        return 0;
    if (find_parts(target->type, target->count, target->extent, NULL, "target",
                   &parts)
        < 0)
        return -1;
    int code = take_typemap(&parts, &reading->call.layout);
    wm_py_typemap_free(&parts);
    what->parts = reading->call.layout.parts;
    what->count = (size_t)reading->call.layout.count;
    return code;
}

static int
begin_remote_unlocked(reading_t *reading, const wm_target_op_t *what,
                      wm_buffer_t **sides, wm_op_t **op, wm_error_t *err)
{
    wm_window_t *window = reading->window;
    wm_lock(&window->lock);
    int code = wm_target_begin(window->target, what, sides[ORIGIN],
                               sides[RESULT], op, err);
    window->asked = true;
    pthread_mutex_unlock(&window->lock);
    return code;
}

// Copies the element to compare with, which may be in GPU memory.
static int
read_compared(reading_t *reading, PyObject *value, char *element)
{
    PyObject *bytes = wm_py_cold("warpmpi._windows", "element_of", "(O)",
                                 value);
    if (bytes == NULL)
        return -1;
    size_t nbytes = (size_t)PyBytes_GET_SIZE(bytes);
    if (nbytes <= WM_TARGET_COMPARED && nbytes == reading->call.nbytes)
        memcpy(element, PyBytes_AS_STRING(bytes), nbytes);
    Py_DECREF(bytes);
    return 0;
}

static PyObject *
begin_remote(reading_t *reading, const shape_t *shape, PyObject **values)
{
    wm_buffer_t buffers[3], *sides[3] = {NULL};
    char element[WM_TARGET_COMPARED] = {0};
    wm_target_op_t what;
    wm_error_t err;
    wm_op_t *op = NULL;
    int code;
    if (fill_remote(reading, shape, &what) < 0)
        return NULL;
    if (shape->compare > 0) {
        if (read_compared(reading, values[shape->compare], element) < 0)
            return NULL;
        what.compare = element;
    }
    if (what.nbytes == 0)
        return shape->requested ? ended_request() : Py_NewRef(Py_None);
    for (int i = 0; i < 3; ++i)
        if (reading->given[i] && i != COMPARE) {
            buffers[i] = wm_py_message_detach(&reading->messages[i]);
            sides[i] = &buffers[i];
        }
    if (what.kind == WM_TARGET_GET) {
        sides[RESULT] = sides[ORIGIN];
        sides[ORIGIN] = NULL;
    }
    WM_PY_UNLOCKED(code = begin_remote_unlocked(reading, &what, sides,
                                                shape->requested ? &op : NULL,
                                                &err));
    if (code < 0)
        return wm_py_raise(&err);
    if (!shape->requested)
        Py_RETURN_NONE;
    wm_message_t none = {0};
    return wm_py_request_new(op, MPI_REQUEST_NULL, &none);
}

static PyObject *
run_call(const shape_t *shape, PyObject *object, PyObject *const *args,
         Py_ssize_t given, PyObject *keywords)
{
    PyObject *values[6];
    wm_error_t err;
    reading_t reading;
    int rank;
    reading.name = shape->name;
    reading.self = (wm_py_window_t *)object;
    reading.window = wm_py_window_of(reading.self, shape->name);
    if (reading.window == NULL)
        return PyErr_Occurred() ? NULL
                                : wm_py_window_beneath(object, shape->name,
                                                       args, given, keywords);
    if (wm_py_arguments(shape->name, shape->names, shape->count,
                        shape->required, args, given, keywords, values)
        < 0)
        return NULL;
    int code = wm_py_window_rank(reading.window, values[shape->rank],
                                 shape->name, &rank);
    if (code < 0)
        return NULL;
    if (code > 0)
        return shape->requested ? ended_request() : Py_NewRef(Py_None);
    const wm_window_part_t *part = &reading.window->parts[rank];
    code = wm_window_check_epoch(reading.window, rank, shape->name, &err);
    if (code < 0)
        return wm_py_raise(&err);
    reading.call = (wm_window_call_t){.kind = shape->kind, .target = rank};
    memset(reading.given, 0, sizeof reading.given);
    reading.remote = part->memory == NULL && part->nbytes > 0;
    code = read_call(&reading, shape, values);
    if (code > 0) { // of a dynamic window: no GPU memory is attached there
        release_reading(&reading);
        reading.remote = true;
        reading.call = (wm_window_call_t){.kind = shape->kind, .target = rank};
        memset(reading.given, 0, sizeof reading.given);
        code = read_call(&reading, shape, values);
    }
    PyObject *result = code < 0         ? NULL
                       : reading.remote ? begin_remote(&reading, shape, values)
                                        : begin(&reading, shape->requested);
    release_reading(&reading);
    return result;
}

#define CALL(call, ...)                                                       \
    static const shape_t shape_##call = {.name = #call, __VA_ARGS__};         \
    PyObject *wm_py_window_##call(PyObject *self, PyObject *const *args,      \
                                  Py_ssize_t given, PyObject *keywords)       \
    {                                                                         \
        return run_call(&shape_##call, self, args, given, keywords);          \
    }

#define TRANSFER(call, moves, ends)                                           \
    CALL(call, .names = {"origin", "target_rank", "target"}, .count = 3,      \
         .required = 2, .kind = moves, .rank = 1, .target = 2,                \
         .requested = ends)

#define ACCUMULATE(call, ends)                                                \
    CALL(call, .names = {"origin", "target_rank", "target", "op"},            \
         .count = 4, .required = 2, .kind = WM_WINDOW_UPDATE, .rank = 1,      \
         .target = 2, .op = 3, .requested = ends)

#define GET_ACCUMULATE(call, ends)                                            \
    CALL(call, .names = {"origin", "result", "target_rank", "target", "op"},  \
         .count = 5, .required = 3, .kind = WM_WINDOW_UPDATE, .result = 1,    \
         .rank = 2, .target = 3, .op = 4, .requested = ends)

const char wm_py_window_Put_doc[] = PyDoc_STR(
    "Put($self, /, origin, target_rank, target=None)\n--\n\n"
    "Write an array to the memory of a rank.\n\n"
    "origin: a GPU or host array, or [array, count, datatype], which stays\n"
    "as it is until the next call that synchronizes the window. target: a\n"
    "displacement in units of the target's disp_unit, or [displacement,\n"
    "count, datatype]; default: the beginning. The array is read behind the\n"
    "work of its stream, and calls on one window are done in their order.\n"
    "Raises MPI.Exception: ERR_RMA_SYNC outside of an epoch, ERR_RMA_RANGE\n"
    "beyond the target's memory.");
TRANSFER(Put, WM_WINDOW_PUT, false)

const char wm_py_window_Get_doc[] = PyDoc_STR(
    "Get($self, /, origin, target_rank, target=None)\n--\n\n"
    "Read the memory of a rank into an array, which has the data after the\n"
    "next call that synchronizes the window. Arguments and errors as Put.");
TRANSFER(Get, WM_WINDOW_GET, false)

const char wm_py_window_Rput_doc[] = PyDoc_STR(
    "Rput($self, /, origin, target_rank, target=None)\n--\n\n"
    "Do as Put; returns a request.");
TRANSFER(Rput, WM_WINDOW_PUT, true)

const char wm_py_window_Rget_doc[] = PyDoc_STR(
    "Rget($self, /, origin, target_rank, target=None)\n--\n\n"
    "Do as Get; returns a request, at whose end the array has the data.");
TRANSFER(Rget, WM_WINDOW_GET, true)

const char wm_py_window_Accumulate_doc[] = PyDoc_STR(
    "Accumulate($self, /, origin, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Combine the memory of a rank with an array, element by element, by an\n"
    "operation of MPI's (op; None: MPI.SUM), also MPI.REPLACE. Several ranks "
    "may do so at the\n"
    "same time: each element is updated at once. Arguments and errors as\n"
    "Put.");
ACCUMULATE(Accumulate, false)

const char wm_py_window_Raccumulate_doc[] = PyDoc_STR(
    "Raccumulate($self, /, origin, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Accumulate; returns a request.");
ACCUMULATE(Raccumulate, true)

const char wm_py_window_Get_accumulate_doc[] = PyDoc_STR(
    "Get_accumulate($self, /, origin, result, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Accumulate; result gets the elements as they were before. With\n"
    "MPI.NO_OP they stay, and origin is not read.");
GET_ACCUMULATE(Get_accumulate, false)

const char wm_py_window_Rget_accumulate_doc[] = PyDoc_STR(
    "Rget_accumulate($self, /, origin, result, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Get_accumulate; returns a request.");
GET_ACCUMULATE(Rget_accumulate, true)

const char wm_py_window_Fetch_and_op_doc[] = PyDoc_STR(
    "Fetch_and_op($self, /, origin, result, target_rank, target_disp=0, "
    "op=None)\n--\n\n"
    "Do as Get_accumulate with one element, at a displacement.");
CALL(Fetch_and_op,
     .names = {"origin", "result", "target_rank", "target_disp", "op"},
     .count = 5, .required = 3, .kind = WM_WINDOW_UPDATE, .result = 1,
     .rank = 2, .target = 3, .op = 4, .single = true)

const char wm_py_window_Compare_and_swap_doc[] = PyDoc_STR(
    "Compare_and_swap($self, /, origin, compare, result, target_rank, "
    "target_disp=0)\n--\n\n"
    "Replace one element by origin if it equals compare; result gets the\n"
    "element as it was before. Elements have 1, 2, 4 or 8 bytes.");
CALL(Compare_and_swap,
     .names = {"origin", "compare", "result", "target_rank", "target_disp"},
     .count = 5, .required = 4, .kind = WM_WINDOW_UPDATE, .compare = 1,
     .result = 2, .rank = 3, .target = 4, .single = true)

// --- on a stream ------------------------------------------------------------

const char wm_py_window_on_call_doc[] = PyDoc_STR(
    "_on_call($self, stream, name, /, *args)\n--\n\n"
    "Make the call of that name, with all its arguments, on a stream.");

static const shape_t *const on_stream_shapes[] = {
    &shape_Put,          &shape_Get,
    &shape_Accumulate,   &shape_Get_accumulate,
    &shape_Fetch_and_op, &shape_Compare_and_swap,
};

static int
begin_on_unlocked(reading_t *reading, int device, CUstream stream,
                  wm_error_t *err)
{
    wm_window_t *window = reading->window;
    wm_lock(&window->lock);
    int code = wm_window_begin_on(window, &reading->call, device, stream, err);
    pthread_mutex_unlock(&window->lock);
    return code;
}

// Makes a call whose epoch was checked on a stream.
static PyObject *
run_on(reading_t *reading, const shape_t *shape, PyObject **values, int device,
       CUstream stream)
{
    wm_window_side_t **sides[] = {
        &reading->call.origin, &reading->call.compare, &reading->call.result};
    wm_error_t err;
    int code = read_call(reading, shape, values);
    if (code < 0)
        return NULL;
    if (code > 0 || reading->remote)
        return PyErr_Format(PyExc_ValueError,
                            "%s on a stream: this process does not reach the "
                            "memory of rank %d: call the window itself, "
                            "without on(stream)",
                            shape->name, reading->call.target);
    for (int i = 0; i < 3; ++i)
        if (reading->given[i]) {
            reading->sides[i].buffer = wm_py_message_detach(
                &reading->messages[i]);
            *sides[i] = &reading->sides[i];
        }
    WM_PY_UNLOCKED(code = begin_on_unlocked(reading, device, stream, &err));
    return wm_py_none(code, &err);
}

PyObject *
wm_py_window_on_call(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    reading_t reading = {.self = (wm_py_window_t *)object};
    const shape_t *shape = NULL;
    wm_error_t err;
    CUstream stream;
    int device, rank;
    const char *name = given > 1 ? PyUnicode_AsUTF8(args[1]) : NULL;
    if (name == NULL
        || wm_py_stream_from_object(args[0], "stream", &device, &stream) < 0)
        return NULL;
    size_t count = sizeof on_stream_shapes / sizeof *on_stream_shapes;
    for (size_t i = 0; i < count; ++i)
        if (strcmp(on_stream_shapes[i]->name, name) == 0)
            shape = on_stream_shapes[i];
    reading.window = wm_py_window_of(reading.self, name);
    if (shape == NULL || given != 2 + shape->count || reading.window == NULL)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_RuntimeError,
                                  "%s on a stream: the window was "
                                  "freed",
                                  name);
    PyObject *values[6];
    memcpy(values, args + 2, (size_t)shape->count * sizeof *values);
    reading.name = shape->name;
    int code = wm_py_window_rank(reading.window, values[shape->rank], name,
                                 &rank);
    if (code != 0)
        return code < 0 ? NULL : Py_NewRef(Py_None);
    code = wm_window_check_epoch(reading.window, rank, name, &err);
    if (code < 0)
        return wm_py_raise(&err);
    const wm_window_part_t *part = &reading.window->parts[rank];
    reading.remote = part->memory == NULL && part->nbytes > 0;
    reading.call = (wm_window_call_t){.kind = shape->kind, .target = rank};
    PyObject *result = run_on(&reading, shape, values, device, stream);
    release_reading(&reading);
    return result;
}
