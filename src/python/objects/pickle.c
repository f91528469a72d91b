// SPDX-License-Identifier: BSD-3-Clause
// The core of warpmpi/_objects/: an object that is sent with embedded arrays,
// the arrays of GPU memory inside it. Each array is a message of its own.
#include <stdbool.h>

#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/message/buffered.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/wait.h"
#include "python/message/channel.h"
#include "python/objects/objects.h"
#include "python/request/py_request.h"
#include "python/view/view.h"

// Arrays of more bytes wait until the receive of their object begins.
#define RENDEZVOUS_BYTES 65536

// Refuses ranks that embedded arrays cannot go to.
static int
check_rank(const wm_channel_t *channel, int dest, int tag)
{
    wm_error_t err;
    int code = wm_comm_check(channel->comm, "dest", dest, tag, false, &err);
    if (code == 0 && dest == MPI_PROC_NULL)
        code = wm_error_set(&err, WM_ERR_VALUE, 0,
                            "dest: MPI.PROC_NULL cannot receive arrays");
    return wm_py_result(code, &err);
}

PyDoc_STRVAR(numbers_doc,
             "_embedded_numbers(comm, dest, count, /)\n--\n\n"
             "Return the numbers of `count` arrays that are sent to a rank.");

static PyObject *
numbers(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *to;
    wm_channel_t channel;
    int dest, count;
    if (!PyArg_ParseTuple(args, "OOi:_embedded_numbers", &object, &to, &count)
        || wm_py_argument_int(to, "dest", &dest) < 0
        || wm_py_channel_get(object, &channel) < 0
        || check_rank(&channel, dest, 0) < 0)
        return NULL;
    PyObject *list = PyList_New(count);
    uint32_t next;
    WM_PY_UNLOCKED(next = wm_comm_draw(channel.comm, dest, (uint32_t)count));
    for (int i = 0; i < count && list != NULL; ++i) {
        PyObject *number = PyLong_FromLong((long)next);
        if (number == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, number);
        next = next == (uint32_t)wm_comm_last_number(channel.comm) ? 0
                                                                   : next + 1;
    }
    return list;
}

typedef struct {
    wm_message_t message;
    wm_buffer_t buffer;
    bool copied; // a copy: no call waits for it
    wm_envelope_t envelope;
    wm_op_t *op;
} embedded_t;

typedef struct {
    wm_channel_t channel;
    wm_envelope_t envelope; // envelope of the object
    wm_message_t message;
    embedded_t *embedded;
    int count; // number of parsed arrays
} sending_t;

static void
release_embedded(sending_t *sending)
{
    for (int i = 0; i < sending->count; ++i) {
        embedded_t *array = &sending->embedded[i];
        wm_buffer_release(&array->buffer); // no effect if it was taken over
        wm_py_message_release(&array->message);
        if (array->op != NULL)
            wm_op_release_told(array->op); // or it completes by itself
    }
    PyMem_Free(sending->embedded);
}

// Parses `list`, which has a pair (array, number) for each embedded array.
static int
parse_embedded(sending_t *sending, PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    sending->embedded = PyMem_Calloc((size_t)count, sizeof *sending->embedded);
    if (sending->embedded == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *object;
        embedded_t *array = &sending->embedded[i];
        array->envelope = (wm_envelope_t){
            .rank = sending->envelope.rank,
            .more = true,
            .stream_device = -1,
        };
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Oi", &object,
                              &array->envelope.tag)
            || wm_py_message_parse(object, false, "obj", &array->message) < 0)
            return -1;
        array->buffer = wm_py_message_detach(&array->message);
        ++sending->count;
    }
    return 0;
}

// Replaces an array that no call will wait for by a copy.
static int
copy_embedded(embedded_t *array, wm_error_t *err)
{
    wm_buffer_t copy;
    int code = wm_buffer_duplicate(&array->buffer, &array->envelope, &copy,
                                   err);
    if (code < 0)
        return code;
    wm_buffer_release(&array->buffer);
    array->buffer = copy;
    array->copied = true;
    return 0;
}

// Does all that can fail before the object is sent. A blocking send leaves the
// arrays in place, unless they go through MPI, which would wait until the
// receiver unpickles. Where staging is refused, it waits in any case.
static int
prepare_embedded(sending_t *sending, wm_error_t *err)
{
    wm_comm_t *comm = sending->channel.comm;
    wm_envelope_t *envelope = &sending->envelope;
    bool in_place = sending->count > 0 && envelope->blocking
                    && !envelope->buffered
                    && (wm_node_shares(comm->peers[envelope->rank])
                        || wm_require_is_on(comm));
    size_t bytes = 0;
    int code = 0;
    for (int i = 0; i < sending->count && code == 0; ++i) {
        embedded_t *array = &sending->embedded[i];
        bytes += array->buffer.nbytes;
        array->envelope.blocking = array->envelope.eager = in_place;
        code = wm_await_producer(&array->buffer, &array->buffer.producer,
                                 &array->envelope, false, err);
        if (code == 0 && !in_place)
            code = copy_embedded(array, err);
    }
    if (in_place && bytes > RENDEZVOUS_BYTES)
        envelope->synchronous = true;
    return code;
}

// Returns true if an array was not sent, as it would be staged.
static bool
is_refused(const wm_op_t *op, wm_error_t *err)
{
    bool refused = atomic_load(&op->done) && op->error.code == WM_ERR_STAGING;
    if (refused)
        *err = op->error;
    return refused;
}

// Begins to send each array, or its error, after the object.
static int
begin_embedded(sending_t *sending, wm_error_t *err)
{
    wm_comm_t *comm = sending->channel.comm->object_comm;
    int worst = 0;
    if (sending->count == 0)
        return 0;
    for (int i = 0; i < sending->count; ++i) {
        embedded_t *array = &sending->embedded[i];
        wm_buffer_t buffer = array->buffer;
        wm_error_t failure;
        array->buffer.release = NULL;
        int code = wm_send_begin(comm, &buffer, &array->envelope, &array->op,
                                 &failure);
        if (code == 0 && is_refused(array->op, &failure))
            code = failure.code; // of which the receiver was told
        else if (code == 0)
            continue;
        else {
            array->op = NULL;
            wm_send_failure(comm, &array->envelope, failure.text);
        }
        if (worst == 0)
            *err = failure;
        worst = worst == 0 ? code : worst;
    }
    wm_send_flush();
    wm_engine_notify();
    return worst;
}

// Sends the object, then its arrays, even if the wait for the object fails.
// Called without the GIL.
static int
send_unlocked(sending_t *sending, wm_buffer_t *buffer, wm_op_t **op,
              wm_error_t *err)
{
    bool blocking = sending->envelope.blocking;
    int code = wm_send_begin(sending->channel.comm, buffer, &sending->envelope,
                             op, err);
    if (code < 0)
        return code;
    if (blocking)
        code = wm_py_wait_unlocked(*op, NULL, err);
    wm_error_t late;
    int begun = begin_embedded(sending, &late);
    if (code == 0 && begun < 0) {
        *err = late;
        code = begun;
    }
    for (int i = 0; i < sending->count && code == 0 && blocking; ++i)
        if (!sending->embedded[i].copied && sending->embedded[i].op != NULL)
            code = wm_py_wait_unlocked(sending->embedded[i].op, NULL, err);
    return code;
}

static PyObject *
run(sending_t *sending)
{
    wm_error_t err;
    wm_op_t *op = NULL;
    int code;
    wm_buffer_t buffer = wm_py_message_detach(&sending->message);
    buffer.pickled = true;
    wm_hang_call("send", false);
    Py_BEGIN_ALLOW_THREADS;
    code = prepare_embedded(sending, &err);
    if (code < 0) {
        wm_buffer_release(&buffer);
        if (wm_send_tells(code))
            wm_send_failure(sending->channel.comm, &sending->envelope,
                            err.text);
    }
    else
        code = send_unlocked(sending, &buffer, &op, &err);
    Py_END_ALLOW_THREADS;
    if (code < 0) {
        if (op != NULL)
            wm_op_release_told(op); // else the operation completes by itself
        return wm_py_raise(&err);
    }
    if (!sending->envelope.blocking)
        return wm_py_request_new(op, MPI_REQUEST_NULL, &sending->message);
    wm_op_release_told(op);
    return Py_NewRef(Py_None);
}

PyDoc_STRVAR(
    send_doc,
    "_object_send(comm, data, dest, tag, mode, blocking, embedded, /)\n--\n\n"
    "Send the bytes of an object and its arrays, a list of (array,\n"
    "number). mode: '' 's' 'b' as in ssend and bsend. None, or a\n"
    "wm.Request, which is that of the object.");

static PyObject *
send(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *comm, *data, *to, *tagged, *list;
    const char *mode;
    int dest, tag, blocking;
    sending_t sending = {0};
    if (!PyArg_ParseTuple(args, "OOOOspO!:_object_send", &comm, &data, &to,
                          &tagged, &mode, &blocking, &PyList_Type, &list)
        || wm_py_argument_int(to, "dest", &dest) < 0
        || wm_py_argument_int(tagged, "tag", &tag) < 0
        || wm_py_channel_get(comm, &sending.channel) < 0
        || (PyList_GET_SIZE(list) > 0
            && check_rank(&sending.channel, dest, tag) < 0))
        return wm_py_channel_fail(comm, false);
    sending.envelope = wm_py_channel_envelope(&sending.channel, dest, tag,
                                              blocking);
    sending.envelope.synchronous = *mode == 's';
    sending.envelope.buffered = *mode == 'b';
    PyObject *result = NULL;
    if (wm_py_message_parse(data, false, "obj", &sending.message) == 0
        && parse_embedded(&sending, list) == 0)
        result = run(&sending);
    else
        wm_py_channel_tell_receiver(&sending.channel, &sending.envelope);
    release_embedded(&sending);
    wm_py_message_release(&sending.message);
    return result != NULL ? result : wm_py_channel_fail(comm, false);
}

PyDoc_STRVAR(
    failure_doc,
    "_object_failure(comm, dest, tag, mode, text, /)\n--\n\n"
    "Send the reason why there is no object. The receiver raises it.");

static PyObject *
failure(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *comm, *to, *tagged;
    const char *mode, *text;
    int dest, tag;
    wm_channel_t channel;
    if (!PyArg_ParseTuple(args, "OOOss:_object_failure", &comm, &to, &tagged,
                          &mode, &text)
        || wm_py_argument_int(to, "dest", &dest) < 0
        || wm_py_argument_int(tagged, "tag", &tag) < 0
        || wm_py_channel_get(comm, &channel) < 0)
        return NULL;
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, dest, tag,
                                                    false);
    envelope.synchronous = *mode == 's';
    WM_PY_UNLOCKED(wm_send_failure(channel.comm, &envelope, text));
    return Py_NewRef(Py_None);
}

// Most objects that are examined. This costs less than to pickle them, but
// pickle handles an object that occurs often only once.
#define LOOKED_AT 1024
#define DEEPEST 16

static bool
is_scalar(PyObject *object)
{
    return object == Py_None || PyBool_Check(object)
           || PyLong_CheckExact(object) || PyFloat_CheckExact(object)
           || PyUnicode_CheckExact(object) || PyBytes_CheckExact(object)
           || PyComplex_CheckExact(object) || PyByteArray_CheckExact(object)
           || wm_py_view_is_plain(object, false);
}

// Returns true if an object and all objects inside it are of Python's own
// types, or arrays of NumPy's numbers: there is no GPU array. `left` counts
// how many more objects may be examined.
static bool
is_plain(PyObject *object, int depth, int *left)
{
    if (is_scalar(object))
        return true;
    if (depth == DEEPEST)
        return false;
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        Py_ssize_t i = 0, size = PySequence_Fast_GET_SIZE(object);
        while (
            i < size && --*left >= 0
            && is_plain(PySequence_Fast_GET_ITEM(object, i), depth + 1, left))
            ++i;
        return i == size;
    }
    if (!PyDict_CheckExact(object))
        return false;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value))
        if (--*left < 0 || !is_plain(key, depth + 1, left)
            || !is_plain(value, depth + 1, left))
            return false;
    return true;
}

PyDoc_STRVAR(plain_doc,
             "_is_plain(obj, /)\n--\n\n"
             "Return True if an object contains only Python's own types and\n"
             "NumPy's numbers. Returns False if that would take long to find\n"
             "out.");

static PyObject *
plain(PyObject *Py_UNUSED(module), PyObject *object)
{
    int left = LOOKED_AT;
    return PyBool_FromLong(is_plain(object, 0, &left));
}

PyMethodDef wm_py_pickle_functions[] = {
    {"_is_plain", plain, METH_O, plain_doc},
    {"_object_send", send, METH_VARARGS, send_doc},
    {"_object_failure", failure, METH_VARARGS, failure_doc},
    {"_embedded_numbers", numbers, METH_VARARGS, numbers_doc},
    {0},
};
