// SPDX-License-Identifier: BSD-3-Clause
// Send and Recv in all their modes.
#include "python/comm/transfer.h"

#include "comm/diagnostics/hang.h"
#include "comm/engine/request.h"
#include "python/comm/calls.h"
#include "python/request/py_request.h"

int
wm_py_transfer_read(wm_transfer_t *transfer, const char *function,
                    PyObject *self, PyObject *const *args, Py_ssize_t given,
                    PyObject *keywords, bool blocking, wm_mode_t mode)
{
    bool receives = mode == WM_RECEIVE;
    const char *names[] = {"buf", receives ? "source" : "dest", "tag",
                           "status"};
    PyObject *values[4] = {NULL};
    int rank = MPI_ANY_SOURCE, tag = receives ? MPI_ANY_TAG : 0;
    if (wm_py_arguments(function, names, 3 + (receives && blocking),
                        receives ? 1 : 2, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &transfer->channel) < 0
        || wm_py_argument_int(values[1], names[1], &rank) < 0
        || wm_py_argument_int(values[2], "tag", &tag) < 0
        || wm_py_mpi_status(values[3], "status", &transfer->status) < 0)
        return -1;
    transfer->buf = values[0];
    transfer->receives = receives;
    transfer->envelope = wm_py_channel_envelope(&transfer->channel, rank, tag,
                                                blocking);
    transfer->envelope.synchronous = mode == WM_SYNCHRONOUS;
    transfer->envelope.buffered = mode == WM_BUFFERED;
    return 0;
}

int
wm_py_transfer_parse(const wm_transfer_t *transfer, int rank,
                     const char *argument, wm_message_t *message)
{
    if (wm_py_message_parse_for(rank, transfer->buf, transfer->receives,
                                argument, message)
        == 0) {
        wm_py_channel_keep(&transfer->channel, message);
        return 0;
    }
    if (!transfer->receives)
        wm_py_channel_tell_receiver(&transfer->channel, &transfer->envelope);
    return -1;
}

wm_op_t *
wm_py_transfer_begin(const wm_transfer_t *transfer, MPI_Request *request,
                     wm_message_t *message)
{
    wm_error_t err;
    wm_op_t *op = NULL;
    int code;
    wm_buffer_t buffer = wm_py_message_detach(message);
    Py_BEGIN_ALLOW_THREADS;
    code = wm_py_channel_begin_unlocked(
        &transfer->channel, &transfer->envelope, transfer->receives, &buffer,
        &op, &err);
    if (code == 0 && request != NULL && op->has_request) {
        *request = op->request;
        wm_engine_notify();
    }
    else if (code == 0 && request != NULL) {
        code = wm_request_start(op, request, &err);
        if (code < 0)
            wm_op_release(op); // the operation completes by itself
    }
    Py_END_ALLOW_THREADS;
    wm_buffer_release(&buffer);
    if (code < 0) {
        wm_py_message_release(message);
        wm_py_raise(&err);
        return NULL;
    }
    return op;
}

static int
is_captured(const wm_transfer_t *transfer)
{
    return wm_py_channel_is_captured(
        &transfer->channel, transfer->receives ? NULL : &transfer->envelope);
}

// Runs a transfer from begin to end in one release of the GIL.
static PyObject *
run(PyObject *self, wm_transfer_t *transfer, const char *function)
{
    wm_error_t err;
    wm_message_t message;
    wm_op_t *op = NULL;
    const wm_transfer_t *only = transfer;
    int code = is_captured(transfer);
    if (code != 0)
        return code < 0 ? NULL : wm_py_captured_run(self, &only, 1, false);
    transfer->envelope.uncaptured = true;
    if (wm_py_transfer_parse(transfer, transfer->envelope.rank, "buf",
                             &message)
        < 0)
        return NULL;
    wm_buffer_t buffer = wm_py_message_detach(&message);
    wm_waiting_call = (wm_waiting_call_t){.name = function,
                                          .type = message.type};
    Py_BEGIN_ALLOW_THREADS;
    code = wm_py_channel_begin_unlocked(
        &transfer->channel, &transfer->envelope, transfer->receives, &buffer,
        &op, &err);
    if (code == 0)
        code = wm_py_wait_unlocked(op, transfer->status, &err);
    Py_END_ALLOW_THREADS;
    wm_buffer_release(&buffer);
    if (op != NULL) {
        code = wm_py_waited(code, &err);
        wm_op_release_told(op);
    }
    else
        wm_py_raise(&err);
    wm_py_message_release(&message);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
begin(PyObject *self, wm_transfer_t *transfer)
{
    wm_message_t message;
    MPI_Request request;
    int code = is_captured(transfer);
    if (code != 0)
        return code < 0 ? NULL : wm_py_captured_begin(self, transfer);
    transfer->envelope.uncaptured = true;
    if (wm_py_transfer_parse(transfer, transfer->envelope.rank, "buf",
                             &message)
        < 0)
        return NULL;
    wm_op_t *op = wm_py_transfer_begin(transfer, &request, &message);
    return op != NULL ? wm_py_request_new(op, request, &message) : NULL;
}

#define SEND(name, mode, what)                                                \
    WM_PY_SEND(name, true, mode, run(self, &transfer, #name), what)
#define ISEND(name, mode, what)                                               \
    WM_PY_SEND(name, false, mode, begin(self, &transfer), what)

SEND(Send, WM_STANDARD, "Send an array; returns when it may be changed.")
SEND(Ssend, WM_SYNCHRONOUS,
     "Send an array; returns when its receive has begun.")
SEND(Rsend, WM_STANDARD, "Send an array whose receive is posted already.")
SEND(Bsend, WM_BUFFERED,
     "Send a copy, which counts against the attached buffer.")
ISEND(Isend, WM_STANDARD, "Begin to send an array; returns a wm.Request.")
ISEND(Issend, WM_SYNCHRONOUS,
      "Begin a synchronous send; returns a wm.Request.")
ISEND(Irsend, WM_STANDARD, "Begin a ready send; returns a wm.Request.")
ISEND(Ibsend, WM_BUFFERED, "Begin a buffered send; the wm.Request has ended.")

const char wm_py_comm_Recv_doc[] = PyDoc_STR(
    "Recv($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
    "tag=mpi4py.MPI.ANY_TAG, status=None)\n--\n\n"
    "Receive into an array.\n\n" WM_PY_DOC_RECEIVED
    "When the call returns, the data is ready for every "
    "stream.\n" WM_PY_DOC_RAISES);

WM_PY_TRANSFER(Recv, true, WM_RECEIVE, run(self, &transfer, "Recv"))

const char wm_py_comm_Irecv_doc[] = PyDoc_STR(
    "Irecv($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
    "tag=mpi4py.MPI.ANY_TAG)\n--\n\n"
    "Begin to receive into an array; returns a "
    "wm.Request.\n\n" WM_PY_DOC_RECEIVED
    "When Wait returns, the data is ready for every stream. Wait and Test\n"
    "raise the errors that come later.\n" WM_PY_DOC_RAISES);

static PyObject *
begin_receive(PyObject *self, wm_transfer_t *transfer)
{
    transfer->envelope.requested = true;
    return begin(self, transfer);
}

WM_PY_TRANSFER(Irecv, false, WM_RECEIVE, begin_receive(self, &transfer))
