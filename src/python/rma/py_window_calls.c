// SPDX-License-Identifier: BSD-3-Clause
// The calls of wm.Win that move data.
#include <string.h>

#include "comm/rma/window_request.h"
#include "comm/rma/window_sync.h"
#include "python/message/elements.h"
#include "python/request/py_request.h"
#include "python/rma/py_window_read.h"

// --- calls ----------------------------------------------------------------

static int
begin_unlocked(wm_py_reading_t *reading, const wm_on_stream_t *on,
               wm_op_t **op, wm_error_t *err)
{
    wm_window_t *window = reading->window;
    wm_window_call_t *call = &reading->call;
    wm_lock(&window->lock);
    int code = on != NULL   ? wm_window_begin_on(window, call, on->device,
                                                 on->stream, err)
               : op != NULL ? wm_window_begin_requested(window, call, op, err)
                            : wm_window_begin(window, call, err);
    pthread_mutex_unlock(&window->lock);
    return code;
}

static PyObject *
request_of(wm_op_t *op)
{
    wm_message_t none = {0};
    return wm_py_request_new(op, MPI_REQUEST_NULL, &none);
}

// Begins a call that was read, on a stream unless NULL. `requested`: returns a
// request.
static PyObject *
begin(wm_py_reading_t *reading, const wm_on_stream_t *on, bool requested)
{
    wm_window_side_t **sides[] = {
        &reading->call.origin, &reading->call.compare, &reading->call.result};
    wm_error_t err;
    wm_op_t *op;
    int code;
    for (int i = 0; i < 3; ++i)
        if (reading->given[i]) {
            reading->sides[i].buffer = wm_py_message_detach(
                &reading->messages[i]);
            *sides[i] = &reading->sides[i];
        }
    WM_PY_UNLOCKED(
        code = begin_unlocked(reading, on, requested ? &op : NULL, &err));
    if (code < 0)
        return wm_py_raise(&err);
    return requested ? request_of(op) : Py_NewRef(Py_None);
}

// The arguments of a call, as they are in a table.
typedef struct {
    const char *name;
    const char *names[6];
    int count, required;
    wm_target_kind_t kind;
    bool requested, single;                // one element
    int compare, result, rank, target, op; // their positions; 0: none
} shape_t;

static int
refuse_sizes(const char *call)
{
    return wm_py_fail(PyExc_ValueError,
                      "%s: the arrays have different sizes: give all the same "
                      "number of elements",
                      call);
}

static int
check_single(const char *call, const wm_message_t *message)
{
    return message->count == 1
               ? 0
               : wm_py_fail(PyExc_ValueError,
                            "%s: the arrays have %lld elements: give arrays "
                            "of one element, or use Get_accumulate",
                            call, (long long)message->count);
}

// Checks an origin that is not read, as MPI's Fetch_and_op does.
static int
check_unread(const wm_py_reading_t *reading, PyObject *origin)
{
    wm_message_t message;
    if (origin == Py_None)
        return 0;
    if (wm_py_message_parse(origin, false, "origin", &message) < 0)
        return -1;
    int code = check_single(reading->name, &message);
    if (code == 0 && message.buffer.nbytes != reading->call.nbytes)
        code = refuse_sizes(reading->name);
    wm_py_message_release(&message);
    return code;
}

// Reads the arguments. Returns 1 if the target's memory is not ours.
static int
read_call(wm_py_reading_t *reading, const shape_t *shape, PyObject **values)
{
    bool gets = shape->kind == WM_TARGET_GET;
    MPI_Op op = MPI_SUM;
    if (shape->op > 0 && values[shape->op] != NULL
        && values[shape->op] != Py_None
        && wm_py_mpi_op(values[shape->op], "op", &op) < 0)
        return -1;
    bool unread = op == MPI_NO_OP && shape->result > 0;
    const wm_message_t *first =
        &reading->messages[unread ? WM_PY_RESULT : WM_PY_ORIGIN];
    if ((!unread
         && wm_py_reading_side(reading, WM_PY_ORIGIN, values[0], gets,
                               "origin")
                < 0)
        || (shape->compare > 0
            && wm_py_reading_side(reading, WM_PY_COMPARE,
                                  values[shape->compare], false, "compare")
                   < 0)
        || (shape->result > 0
            && wm_py_reading_side(reading, WM_PY_RESULT, values[shape->result],
                                  true, "result")
                   < 0)
        || wm_py_reading_target(reading, values[shape->target], first,
                                &reading->target)
               < 0)
        return -1;
    int found = reading->remote
                    ? 0
                    : wm_py_reading_place(reading, &reading->target);
    if (found != 0)
        return found;
    for (int i = 0; i < 3; ++i)
        if (reading->given[i]
            && reading->messages[i].buffer.nbytes != reading->call.nbytes)
            return refuse_sizes(reading->name);
    if (shape->compare > 0) {
        reading->call.op = WM_REDUCE_REPLACE;
        reading->call.type = wm_py_reading_type_of_size(reading->call.nbytes,
                                                        first->size);
        if (wm_reduce_size(reading->call.type) == reading->call.nbytes)
            return 0;
        return wm_py_fail(PyExc_ValueError,
                          "%s: give arrays of one element of 1, 2, 4 or 8 "
                          "bytes",
                          reading->name);
    }
    if (shape->single
        && (check_single(reading->name, first) < 0
            || (unread && check_unread(reading, values[0]) < 0)))
        return -1;
    return shape->kind >= WM_TARGET_ACCUMULATE ? wm_py_reading_update(
               reading, shape->op > 0 ? values[shape->op] : NULL, first)
                                               : 0;
}

// --- calls that the target's engine serves --------------------------------

// Fills what is asked for. The parts, with gaps, are the caller's.
static int
fill_remote(wm_py_reading_t *reading, const shape_t *shape,
            wm_target_op_t *what)
{
    const wm_py_window_target_t *target = &reading->target;
    const wm_window_call_t *call = &reading->call;
    const wm_window_part_t *part = &reading->window->parts[call->target];
    long long at = target->displacement;
    if (!reading->window->dynamic
        && (__builtin_mul_overflow(at, part->unit, &at) || at < 0
            || (uint64_t)at > part->nbytes
            || (!target->gaps && call->nbytes > part->nbytes - (uint64_t)at)))
        return wm_py_reading_refuse_range(reading, target);
    *what = (wm_target_op_t){
        .kind = call->kind,
        .rank = call->target,
        .at = (uint64_t)at,
        .nbytes = call->nbytes,
        .type = call->type,
        .op = call->op,
        .requested = shape->requested,
    };
    if (!target->gaps || call->nbytes == 0)
        return 0;
    if (!reading->window->dynamic
        && !wm_py_elements_fit(&target->of, 0, (Py_ssize_t)target->count,
                               (size_t)at, (size_t)part->nbytes - (size_t)at))
        return wm_py_reading_refuse_range(reading, target);
    int code = wm_py_reading_gaps(reading, NULL);
    what->parts = reading->call.layout.parts;
    what->count = (size_t)reading->call.layout.count;
    return code;
}

static int
begin_remote_unlocked(wm_py_reading_t *reading, const wm_target_op_t *what,
                      wm_buffer_t **sides, wm_op_t **op, wm_error_t *err)
{
    wm_window_t *window = reading->window;
    wm_lock(&window->lock);
    int code = wm_target_begin(window->target, what, sides[WM_PY_ORIGIN],
                               sides[WM_PY_RESULT], op, err);
    window->asked = true;
    pthread_mutex_unlock(&window->lock);
    return code;
}

// Copies the element to compare with, which may be in GPU memory.
static int
read_compared(wm_py_reading_t *reading, PyObject *value, char *element)
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
begin_remote(wm_py_reading_t *reading, const shape_t *shape, PyObject **values)
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
        return shape->requested ? request_of(wm_op_ended())
                                : Py_NewRef(Py_None);
    for (int i = 0; i < 3; ++i)
        if (reading->given[i] && i != WM_PY_COMPARE) {
            buffers[i] = wm_py_message_detach(&reading->messages[i]);
            sides[i] = &buffers[i];
        }
    if (what.kind == WM_TARGET_GET) {
        sides[WM_PY_RESULT] = sides[WM_PY_ORIGIN];
        sides[WM_PY_ORIGIN] = NULL;
    }
    WM_PY_UNLOCKED(code = begin_remote_unlocked(reading, &what, sides,
                                                shape->requested ? &op : NULL,
                                                &err));
    if (code < 0)
        return wm_py_raise(&err);
    if (!shape->requested)
        Py_RETURN_NONE;
    return request_of(op);
}

// Reads a call to a rank, by the engine of that rank (`remote`) or not.
static int
read_again(wm_py_reading_t *reading, const shape_t *shape, PyObject **values,
           int rank, bool remote)
{
    reading->call = (wm_window_call_t){.kind = shape->kind, .target = rank};
    memset(reading->given, 0, sizeof reading->given);
    reading->remote = remote;
    return read_call(reading, shape, values);
}

static PyObject *
run_read(wm_py_reading_t *reading, const shape_t *shape,
         const wm_on_stream_t *on, PyObject **values, int rank)
{
    int code = read_again(
        reading, shape, values, rank,
        !wm_window_reaches(reading->window, rank,
                           shape->kind >= WM_TARGET_ACCUMULATE));
    if (on != NULL && (code > 0 || (code == 0 && reading->remote)))
        return PyErr_Format(PyExc_ValueError,
                            "%s on a stream: this process does not reach the "
                            "memory of rank %d: call the window itself, "
                            "without on(stream)",
                            shape->name, rank);
    if (code > 0) { // of a dynamic window: no GPU memory is attached there
        wm_py_reading_release(reading);
        code = read_again(reading, shape, values, rank, true);
    }
    return code < 0          ? NULL
           : reading->remote ? begin_remote(reading, shape, values)
                             : begin(reading, on, shape->requested);
}

// Makes a call, on a stream unless NULL.
static PyObject *
run(wm_window_t *window, const shape_t *shape, const wm_on_stream_t *on,
    PyObject **values)
{
    wm_py_reading_t reading; // large: what is read is set then
    wm_error_t err;
    int rank;
    int code = wm_py_window_rank(window, values[shape->rank], shape->name,
                                 &rank);
    if (code < 0)
        return NULL;
    if (code > 0)
        return shape->requested ? request_of(wm_op_ended())
                                : Py_NewRef(Py_None);
    code = wm_window_check_epoch(window, rank, shape->name, &err);
    if (code < 0)
        return wm_py_raise(&err);
    reading.name = shape->name;
    reading.window = window;
    PyObject *result = run_read(&reading, shape, on, values, rank);
    wm_py_reading_release(&reading);
    window->used |= result != NULL;
    return result;
}

static PyObject *
run_call(const shape_t *shape, PyObject *object, PyObject *const *args,
         Py_ssize_t given, PyObject *keywords)
{
    PyObject *values[6];
    wm_window_t *window = wm_py_window_of((wm_py_window_t *)object);
    if (window == NULL)
        return PyErr_Occurred() ? NULL
                                : wm_py_window_beneath(object, shape->name,
                                                       args, given, keywords);
    return wm_py_arguments(shape->name, shape->names, shape->count,
                           shape->required, args, given, keywords, values)
                   < 0
               ? NULL
               : run(window, shape, NULL, values);
}

#define CALL(call, ...)                                                       \
    static const shape_t shape_##call = {.name = #call, __VA_ARGS__};         \
    PyObject *wm_py_window_##call(PyObject *self, PyObject *const *args,      \
                                  Py_ssize_t given, PyObject *keywords)       \
    {                                                                         \
        PyObject *result = run_call(&shape_##call, self, args, given,         \
                                    keywords);                                \
        return result != NULL ? result : wm_py_window_fail(self);             \
    }

#define TRANSFER(call, moves, ends)                                           \
    CALL(call, .names = {"origin", "target_rank", "target"}, .count = 3,      \
         .required = 2, .kind = moves, .rank = 1, .target = 2,                \
         .requested = ends)

#define ACCUMULATE(call, ends)                                                \
    CALL(call, .names = {"origin", "target_rank", "target", "op"},            \
         .count = 4, .required = 2, .kind = WM_TARGET_ACCUMULATE, .rank = 1,  \
         .target = 2, .op = 3, .requested = ends)

#define GET_ACCUMULATE(call, ends)                                            \
    CALL(call, .names = {"origin", "result", "target_rank", "target", "op"},  \
         .count = 5, .required = 3, .kind = WM_TARGET_FETCH, .result = 1,     \
         .rank = 2, .target = 3, .op = 4, .requested = ends)

const char wm_py_window_Put_doc[] = PyDoc_STR(
    "Put($self, /, origin, target_rank, target=None)\n--\n\n"
    "Write an array to the memory of a rank.\n\n"
    "origin: a GPU or host array, or [array, count, datatype], which stays\n"
    "as it is until the next call that synchronizes the window.\n"
    "target_rank: a rank of the window; MPI.PROC_NULL does nothing. target:\n"
    "a displacement in units of the target's disp_unit, or [displacement,\n"
    "count, datatype]; default: the beginning. The array is read behind the\n"
    "work of its stream, and calls on one window are done in their order.\n\n"
    "Raises MPI.Exception: ERR_RMA_SYNC outside of an epoch, ERR_RMA_RANGE\n"
    "beyond the target's memory, ERR_RANK, ERR_TYPE and ERR_COUNT;\n"
    "ValueError if both sides have different sizes, if the window's GPU\n"
    "does not reach the array, and for a datatype of more than 65536 blocks\n"
    "at unequal distances; TypeError for other arguments; RuntimeError\n"
    "while the stream that wrote the array is being captured; MemoryError;\n"
    "wm.CudaError.");
TRANSFER(Put, WM_TARGET_PUT, false)

const char wm_py_window_Get_doc[] = PyDoc_STR(
    "Get($self, /, origin, target_rank, target=None)\n--\n\n"
    "Read the memory of a rank into an array.\n\n"
    "origin: the array that is written, writable; it has the data after the\n"
    "next call that synchronizes the window. Other arguments and errors as\n"
    "Put.");
TRANSFER(Get, WM_TARGET_GET, false)

const char wm_py_window_Rput_doc[] = PyDoc_STR(
    "Rput($self, /, origin, target_rank, target=None)\n--\n\n"
    "Do as Put; returns a request, at whose end the array may be changed: a\n"
    "wm.Request, for MPI's own windows an MPI.Request.");
TRANSFER(Rput, WM_TARGET_PUT, true)

const char wm_py_window_Rget_doc[] = PyDoc_STR(
    "Rget($self, /, origin, target_rank, target=None)\n--\n\n"
    "Do as Get; returns a request, as Rput, at whose end the array has the\n"
    "data.");
TRANSFER(Rget, WM_TARGET_GET, true)

const char wm_py_window_Accumulate_doc[] = PyDoc_STR(
    "Accumulate($self, /, origin, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Combine the memory of a rank with an array, element by element.\n\n"
    "op: an operation of MPI's, also MPI.REPLACE; None: MPI.SUM. Several\n"
    "ranks may do so at the same time: each element is updated at once.\n"
    "Other arguments and errors as Put; MPI.Exception (ERR_OP) for an\n"
    "operation that MPI does not have for the elements.");
ACCUMULATE(Accumulate, false)

const char wm_py_window_Raccumulate_doc[] = PyDoc_STR(
    "Raccumulate($self, /, origin, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Accumulate; returns a request, as Rput.");
ACCUMULATE(Raccumulate, true)

const char wm_py_window_Get_accumulate_doc[] = PyDoc_STR(
    "Get_accumulate($self, /, origin, result, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Accumulate; result, a writable array of the same size, gets the\n"
    "elements as they were before. With MPI.NO_OP they stay, and origin is\n"
    "not read. Errors as Accumulate; ValueError for arrays of other sizes.");
GET_ACCUMULATE(Get_accumulate, false)

const char wm_py_window_Rget_accumulate_doc[] = PyDoc_STR(
    "Rget_accumulate($self, /, origin, result, target_rank, target=None, "
    "op=None)\n--\n\n"
    "Do as Get_accumulate; returns a request, as Rput.");
GET_ACCUMULATE(Rget_accumulate, true)

const char wm_py_window_Fetch_and_op_doc[] = PyDoc_STR(
    "Fetch_and_op($self, /, origin, result, target_rank, target_disp=0, "
    "op=None)\n--\n\n"
    "Do as Get_accumulate with one element, at a displacement in units of\n"
    "the target's disp_unit. Errors as Accumulate; ValueError for arrays of\n"
    "other sizes.");
CALL(Fetch_and_op,
     .names = {"origin", "result", "target_rank", "target_disp", "op"},
     .count = 5, .required = 3, .kind = WM_TARGET_FETCH, .result = 1,
     .rank = 2, .target = 3, .op = 4, .single = true)

const char wm_py_window_Compare_and_swap_doc[] = PyDoc_STR(
    "Compare_and_swap($self, /, origin, compare, result, target_rank, "
    "target_disp=0)\n--\n\n"
    "Replace one element by origin if it equals compare; result gets the\n"
    "element as it was before. The three are arrays of one element, which\n"
    "has 1, 2, 4 or 8 bytes. target_disp is in units of the target's\n"
    "disp_unit. Errors as Put; ValueError for arrays of other sizes.");
CALL(Compare_and_swap,
     .names = {"origin", "compare", "result", "target_rank", "target_disp"},
     .count = 5, .required = 4, .kind = WM_TARGET_COMPARE, .compare = 1,
     .result = 2, .rank = 3, .target = 4, .single = true)

// --- on a stream ------------------------------------------------------------

const char wm_py_window_on_call_doc[] = PyDoc_STR(
    "_on_call($self, on, name, /, *args)\n--\n\n"
    "Make the call of that name, with all its arguments, on the stream of a\n"
    "StreamComm.");

static const shape_t *const on_stream_shapes[] = {
    &shape_Put,          &shape_Get,
    &shape_Accumulate,   &shape_Get_accumulate,
    &shape_Fetch_and_op, &shape_Compare_and_swap,
};

PyObject *
wm_py_window_on_call(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    const shape_t *shape = NULL;
    PyObject *values[6];
    const char *name = given > 1 ? PyUnicode_AsUTF8(args[1]) : NULL;
    const wm_on_stream_t *on;
    wm_window_t *window = name != NULL
                              ? wm_py_window_on(object, args[0], name, &on)
                              : NULL;
    size_t count = sizeof on_stream_shapes / sizeof *on_stream_shapes;
    for (size_t i = 0; i < count; ++i)
        if (strcmp(on_stream_shapes[i]->name, name) == 0)
            shape = on_stream_shapes[i];
    if (window == NULL || shape == NULL || given != 2 + shape->count)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError,
                                  "_on_call: %s is no such call", name);
    memcpy(values, args + 2, (size_t)shape->count * sizeof *values);
    return run(window, shape, on, values);
}
