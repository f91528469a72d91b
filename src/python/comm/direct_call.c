// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/direct_call.h"

#include "comm/coll/run/nonblocking.h"
#include "comm/coll/run/persistent_coll.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/coll_require.h"
#include "comm/comm/require.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/engine/request.h"
#include "comm/engine/pool.h"
#include "comm/diagnostics/hang.h"
#include "python/comm/attempt.h"
#include "python/message/channel.h"
#include "python/message/specification.h"
#include "python/request/py_request.h"

// Raises the error of a call. An error of MPI's own tells no cause.
static void
direct_call_raise(wm_coll_result_t result, const wm_error_t *err)
{
    if (result != WM_COLL_MPIS_ERROR) {
        wm_py_raise(err);
        return;
    }
    PyObject *error = PyObject_CallFunction(wm_py_state->mpi_exception, "i",
                                            err->detail);
    if (error != NULL)
        PyErr_SetObject(wm_py_state->mpi_exception, error);
    Py_XDECREF(error);
}

// Returns true, with an exception, if a call ends because its arguments were
// not read: wm_py_attempt_is_over(), or other hosts' ranks would wait for this
// one.
static bool
direct_call_is_over(wm_comm_t *comm, const wm_py_coll_args_t *asked)
{
    if (wm_comm_is_one_host(comm)
        || !wm_coll_class_has_length(comm, &asked->call))
        return wm_py_attempt_is_over();
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError,
                     "%s: the buffers cannot be read: give arrays, each with "
                     "whole blocks for all ranks, and MPI's datatypes",
                     wm_call_name(asked->call.kind));
    return true;
}

bool
wm_py_direct_any_device(PyObject *const *args, Py_ssize_t given,
                        PyObject *names)
{
    Py_ssize_t count = given + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
    bool found = false;
    for (Py_ssize_t i = 0; i < count && !found; ++i)
        found = wm_py_message_on_device(args[i]);
    return found;
}

// Returns true if the call uses memory of a GPU.
static bool
direct_call_uses_device(const wm_coll_t *call)
{
    const wm_buffer_t *sides[] = {call->send, call->receive};
    bool found = false;
    for (int i = 0; i < 2; ++i)
        found |= sides[i] != NULL && sides[i]->nbytes > 0
                 && wm_buffer_on_device(sides[i]);
    return found;
}

// Makes a call that MPI does, unless the ranks refuse to stage memory of one.
static wm_coll_result_t
direct_call_by_mpi(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    int code = 0;
    bool one_host = wm_comm_is_one_host(comm);
    if (wm_coll_require_asks(comm, call->kind))
        WM_PY_UNLOCKED(code = wm_coll_require_ask(comm, call, err));
    else
        wm_coll_decline(comm);
    return code < 0   ? (wm_coll_result_t)code
           : one_host ? WM_COLL_BY_MPI
                      : WM_COLL_UNNUMBERED;
}

wm_coll_result_t
wm_py_direct_call(wm_coll_kind_t kind, PyObject *self, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords, bool plain)
{
    wm_channel_t channel;
    wm_error_t err;
    wm_py_coll_args_t asked;
    wm_coll_result_t result;
    if (wm_py_channel_get(self, &channel) < 0) {
        PyErr_Clear();
        return WM_COLL_UNNUMBERED;
    }
    wm_comm_t *comm = channel.comm->whole;
    bool numbered = wm_coll_is_numbered(comm);
    if (!numbered && plain && !wm_coll_require_asks(comm, kind))
        return WM_COLL_UNNUMBERED;
    // Between hosts a rank asks, whatever its memory.
    bool one_host = wm_comm_is_one_host(comm);
    if (plain && !one_host && wm_coll_is_mpis(comm, kind))
        return WM_COLL_BY_MPI;
    bool asks = (!one_host && (numbered || !plain))
                || !wm_py_coll_args_is_plain(kind, comm, plain);
    wm_py_coll_args_init(kind, false, &asked);
    if (asks
        && wm_py_coll_args_read(comm, args, given, keywords, &asked) < 0) {
        if (direct_call_is_over(comm, &asked)) {
            wm_py_coll_args_release(&asked);
            return WM_COLL_FAILED; // this rank has not entered the call
        }
        asked.call.read = false;
    }
    if (one_host)
        asks = asked.call.on_device;
    bool read = asks && asked.call.read;
    if (!plain && wm_require_is_on(comm))
        asked.call.any_device = read ? direct_call_uses_device(&asked.call)
                                     : wm_py_direct_any_device(args, given,
                                                               keywords);
    wm_hang_call(wm_call_name(kind), true);
    if (read)
        wm_waiting_call.type = asked.call.type;
    if (asks && (numbered || read))
        WM_PY_UNLOCKED(result = wm_coll_call(comm, &asked.call, &err));
    else
        result = direct_call_by_mpi(comm, &asked.call, &err);
    if (result < 0)
        direct_call_raise(result, &err);
    if (result < 0 && result != WM_COLL_MPIS_ERROR)
        result = WM_COLL_FAILED;
    wm_py_coll_args_release(&asked);
    return result;
}

void
wm_py_direct_refused(PyObject *self, wm_coll_form_t form)
{
    wm_channel_t channel;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (wm_py_channel_get(self, &channel) < 0)
        PyErr_Clear();
    else
        wm_coll_refused(channel.comm->whole, form);
    PyErr_Restore(kind, value, trace);
}

// Returns the request of a call that was begun, which keeps `kept`; or raises
// the call's error.
static PyObject *
request_of(wm_message_t *kept, int code, wm_op_t *op, MPI_Request handle,
           const wm_error_t *err)
{
    if (code == 0)
        return wm_py_request_new(op, handle, kept);
    wm_py_message_release(kept);
    return code < 0 ? wm_py_raise(err) : NULL;
}

static PyObject *
begin_on_stream(const wm_channel_t *channel, const wm_coll_t *call,
                PyObject *object)
{
    wm_message_t kept;
    wm_error_t err;
    wm_op_t *op;
    int code;
    if (wm_py_message_of_none(object, &kept) < 0)
        return NULL;
    wm_buffer_t buffer = wm_py_message_detach(&kept);
    WM_PY_UNLOCKED(code = wm_coll_on_stream_begin(
                       channel->comm, call->kind, call, channel->device,
                       channel->stream, &buffer, &op, &err));
    if (code != 0)
        wm_buffer_release(&buffer);
    return request_of(&kept, code, op, MPI_REQUEST_NULL, &err);
}

static const char asked_name[] = "warpmpi.asked";

static wm_pool_t asked_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = sizeof(wm_py_coll_args_t),
};

wm_py_coll_args_t *
wm_py_direct_asked(PyObject *read)
{
    return PyCapsule_GetPointer(read, asked_name);
}

static void
free_asked(PyObject *capsule)
{
    wm_py_coll_args_t *asked = wm_py_direct_asked(capsule);
    wm_py_coll_args_release(asked);
    for (int i = 0; i < 2; ++i)
        Py_XDECREF(asked->arrays[i]);
    wm_pool_put(&asked_pool, asked);
}

PyObject *
wm_py_direct_read(wm_coll_kind_t kind, wm_comm_t *comm, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords, bool *over)
{
    wm_py_coll_args_t *asked = wm_pool_get(&asked_pool);
    if (asked == NULL)
        return PyErr_NoMemory();
    wm_py_coll_args_init(kind, true, asked);
    bool known = wm_py_coll_args_read(comm, args, given, keywords, asked) == 0;
    if (!known && over != NULL)
        *over = direct_call_is_over(comm, asked);
    known = known
            && (!wm_coll_shape(kind)->uneven || asked->call.receives != NULL);
    PyObject *capsule = known ? PyCapsule_New(asked, asked_name, free_asked)
                              : NULL;
    if (capsule == NULL) {
        wm_py_coll_args_release(asked);
        wm_pool_put(&asked_pool, asked);
        return NULL;
    }
    for (int i = 0; i < 2; ++i)
        Py_XINCREF(asked->arrays[i]);
    return capsule;
}

PyObject *
wm_py_direct_mpis(const wm_comm_t *comm)
{
    return wm_py_mpi_comm_new(comm->owner->data);
}

bool
wm_py_direct_is_paired(PyObject *self, bool blocks)
{
    wm_channel_t channel;
    if (wm_py_channel_get(self, &channel) < 0) {
        PyErr_Clear();
        return false;
    }
    const wm_neighbor_rule_t *rule = &channel.comm->neighbor_rule;
    return blocks ? rule->misplaces : rule->paired;
}

PyObject *
wm_py_direct_mpis_of(PyObject *self, bool declines)
{
    wm_channel_t channel;
    if (wm_py_channel_get(self, &channel) < 0)
        return NULL;
    wm_comm_t *comm = channel.comm->whole;
    return declines && wm_nonblocking_is_voted(comm)
               ? wm_py_direct_decline(comm)
               : wm_py_direct_mpis(comm);
}

PyObject *
wm_py_direct_decline(wm_comm_t *comm)
{
    wm_error_t err;
    int code;
    WM_PY_UNLOCKED(code = wm_nonblocking_decline(comm, &err));
    return code < 0 ? wm_py_raise(&err) : wm_py_direct_mpis(comm);
}

wm_coll_result_t
wm_py_direct_start(wm_comm_t *comm, const wm_coll_t *call, wm_buffer_t *kept,
                   wm_op_t **op, MPI_Request *request, wm_error_t *err)
{
    wm_coll_result_t begun = wm_nonblocking_begin(comm, call, kept, op, err);
    if (begun != WM_COLL_DONE) {
        wm_buffer_release(kept);
        return begun;
    }
    *request = MPI_REQUEST_NULL;
    int code = wm_request_start(*op, request, err);
    if (code < 0)
        wm_op_release(*op); // the operation completes by itself
    return (wm_coll_result_t)code;
}

static wm_coll_result_t
decline(wm_comm_t *comm, PyObject **result)
{
    *result = wm_py_direct_decline(comm);
    return *result == NULL ? WM_COLL_FAILED : WM_COLL_BY_MPI;
}

wm_coll_result_t
wm_py_direct_begin(wm_coll_kind_t kind, PyObject *self, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, bool plain,
                   PyObject **result)
{
    wm_channel_t channel;
    MPI_Request handle;
    wm_message_t kept;
    wm_error_t err;
    wm_op_t *op;
    if (wm_py_channel_get(self, &channel) < 0) {
        PyErr_Clear();
        return WM_COLL_UNNUMBERED;
    }
    wm_comm_t *comm = channel.comm->whole;
    bool one_host = wm_comm_is_one_host(comm);
    if (!wm_coll_is_numbered(comm))
        return WM_COLL_UNNUMBERED;
    if (one_host && wm_py_coll_args_is_plain(kind, comm, plain)
        && !wm_nonblocking_is_busy(comm))
        return decline(comm, result);
    bool over = false;
    PyObject *capsule = wm_py_direct_read(kind, comm, args, given, keywords,
                                          &over);
    if (capsule == NULL)
        return over || PyErr_Occurred() ? WM_COLL_FAILED
               : one_host               ? decline(comm, result)
                                        : WM_COLL_UNNUMBERED;
    int code = wm_py_message_of_none(capsule, &kept);
    const wm_coll_t *call = &wm_py_direct_asked(capsule)->call;
    Py_DECREF(capsule);
    if (code < 0)
        return WM_COLL_FAILED;
    wm_buffer_t buffer = wm_py_message_detach(&kept);
    wm_coll_result_t begun;
    WM_PY_UNLOCKED(
        begun = wm_py_direct_start(comm, call, &buffer, &op, &handle, &err));
    *result = request_of(&kept, (int)begun, op, handle, &err);
    if (begun == WM_COLL_UNNUMBERED)
        return begun;
    if (begun == WM_COLL_BY_MPI)
        *result = wm_py_direct_mpis(comm);
    return *result == NULL ? WM_COLL_FAILED : begun;
}

static PyObject *
keep(PyObject *self, PyObject *const *args, Py_ssize_t given,
     PyObject *keywords)
{
    Py_ssize_t count = given
                       + (keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0);
    PyObject *kept = PyTuple_New(count + 1);
    for (Py_ssize_t i = 0; i < count && kept != NULL; ++i)
        PyTuple_SET_ITEM(kept, i, Py_NewRef(args[i]));
    if (kept != NULL) // keeps the stream as well
        PyTuple_SET_ITEM(kept, count, Py_NewRef(self));
    return kept;
}

// Tells the other ranks that this rank's arguments are wrong. The exception
// stays.
static void
tell_others(const wm_channel_t *channel, wm_coll_kind_t kind)
{
    PyObject *type, *value, *trace;
    wm_error_t err = {.code = WM_ERR_TYPE};
    PyErr_Fetch(&type, &value, &trace);
    WM_PY_UNLOCKED((void)!wm_coll_on_stream_call(
        channel->comm, kind, NULL, channel->device, channel->stream, &err));
    PyErr_Restore(type, value, trace);
}

PyObject *
wm_py_direct_on_stream(wm_coll_kind_t kind, bool begins, PyObject *self,
                       PyObject *const *args, Py_ssize_t given,
                       PyObject *keywords)
{
    wm_channel_t channel;
    wm_error_t err;
    wm_py_coll_args_t asked;
    int code;
    PyObject *result = NULL, *kept = NULL;
    if (wm_py_channel_get(self, &channel) < 0)
        return NULL;
    wm_py_coll_args_init(kind, begins, &asked);
    asked.sent.contiguous = asked.received.contiguous = true;
    wm_hang_call(wm_call_name(kind), true);
    bool known =
        kind == WM_COLL_BARRIER
        || !wm_coll_on_stream_serves(channel.comm, kind) // reported first
        || (wm_py_coll_args_read(channel.comm, args, given, keywords, &asked)
                == 0
            && (!wm_coll_shape(kind)->uneven || asked.call.receives != NULL));
    if (known && begins)
        kept = keep(self, args, given, keywords);
    if (!known && !PyErr_Occurred())
        PyErr_Format(
            PyExc_TypeError,
            "%s on a stream: give contiguous GPU arrays as buffers, %s; for "
            "other arguments call the communicator itself, without on(stream)",
            wm_call_name(kind),
            wm_py_coll_args_is_separate(kind)
                ? "with a count, a displacement and a datatype in strides (a "
                  "vector, a subarray) for each block, and each block within "
                  "the array"
                : "with elements that MPI knows and that have one size on "
                  "both sides, a rank as root, and one of recvcounts for each "
                  "rank");
    if (PyErr_Occurred())
        tell_others(&channel, kind);
    else if (begins)
        result = begin_on_stream(&channel, &asked.call, kept);
    else {
        WM_PY_UNLOCKED(code = wm_coll_on_stream_call(
                           channel.comm, kind, &asked.call, channel.device,
                           channel.stream, &err));
        result = wm_py_none(code, &err);
    }
    wm_py_coll_args_release(&asked);
    Py_XDECREF(kept);
    return result;
}
