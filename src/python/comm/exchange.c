// SPDX-License-Identifier: BSD-3-Clause
// The calls that send and receive at the same time.
#include "comm/message/buffered.h"
#include "comm/message/pattern.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/wait.h"
#include "python/comm/calls.h"
#include "python/comm/transfer.h"
#include "python/request/py_request.h"

typedef struct {
    wm_transfer_t in, out; // both of one channel
    bool replaces;         // both are the same buffer, called "buf"
    wm_message_t sent, received;
} exchange_t;

// Parses the arguments, with or without a recvbuf and a status.
static int
parse(const char *function, PyObject *self, PyObject *const *args,
      Py_ssize_t given, PyObject *keywords, bool replaces, bool blocking,
      exchange_t *exchange)
{
    static const char *const two[] = {
        "sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status",
    };
    static const char *const one[] = {
        "buf", "dest", "sendtag", "source", "recvtag", "status",
    };
    PyObject *values[7], **from = values + (replaces ? 3 : 4);
    int dest, sendtag = 0, source = MPI_ANY_SOURCE, recvtag = MPI_ANY_TAG;
    wm_error_t err;
    values[6] = NULL;
    *exchange = (exchange_t){.replaces = replaces};
    wm_channel_t *channel = &exchange->in.channel;
    exchange->in.receives = true;
    wm_hang_call(function, false);
    if (wm_py_arguments(function, replaces ? one : two,
                        6 + !replaces - !blocking, 2, args, given, keywords,
                        values)
            < 0
        || wm_py_channel_get(self, channel) < 0
        || wm_py_argument_int(values[1], "dest", &dest) < 0
        || wm_py_argument_int(values[2], "sendtag", &sendtag) < 0
        || wm_py_argument_int(from[0], "source", &source) < 0
        || wm_py_argument_int(from[1], "recvtag", &recvtag) < 0
        || wm_py_mpi_status(blocking ? from[2] : NULL, "status",
                            &exchange->in.status)
               < 0)
        return -1;
    exchange->out.channel = *channel;
    exchange->out.buf = values[0];
    exchange->in.buf = replaces            ? values[0]
                       : values[3] != NULL ? values[3]
                                           : Py_None;
    exchange->in.envelope = wm_py_channel_envelope(channel, source, recvtag,
                                                   blocking);
    exchange->out.envelope = wm_py_channel_envelope(channel, dest, sendtag,
                                                    blocking);
    exchange->out.envelope.paired = blocking;
    int code = wm_comm_check(channel->comm, "dest", dest, sendtag, false,
                             &err);
    if (code == 0)
        code = wm_comm_check(channel->comm, "source", source, recvtag, true,
                             &err);
    return wm_py_result(code, &err);
}

static void
tell_receiver(const exchange_t *exchange)
{
    wm_py_channel_tell_receiver(&exchange->out.channel,
                                &exchange->out.envelope);
}

// Parses both buffers, the sent one first.
static int
look(exchange_t *exchange)
{
    const char *names[] = {"sendbuf", "recvbuf"};
    int dest = exchange->out.envelope.rank;
    int source = exchange->in.envelope.rank;
    if (exchange->replaces) {
        names[0] = names[1] = "buf";
        source = source == MPI_PROC_NULL ? dest : source; // as mpi4py
    }
    if (wm_py_transfer_parse(&exchange->out, dest, names[0], &exchange->sent)
        < 0)
        return -1;
    if (wm_py_transfer_parse(&exchange->in, source, names[1],
                             &exchange->received)
        == 0)
        return 0;
    tell_receiver(exchange);
    return -1;
}

// Returns true if the receive would overwrite the data that is sent.
static bool
is_overwritten(const exchange_t *exchange)
{
    if (exchange->out.envelope.rank == MPI_PROC_NULL
        || exchange->in.envelope.rank == MPI_PROC_NULL)
        return false;
    return exchange->replaces
           || wm_buffer_share(&exchange->sent.buffer,
                              &exchange->received.buffer);
}

// Takes the sent buffer, or a copy of it if the receive would overwrite it.
static int
take_sent(exchange_t *exchange, wm_buffer_t *taken)
{
    wm_error_t err;
    int code;
    bool copied = is_overwritten(exchange);
    wm_buffer_t buffer = wm_py_message_detach(&exchange->sent);
    *taken = buffer;
    if (!copied)
        return 0;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_buffer_duplicate(&buffer, &exchange->out.envelope, taken, &err);
    wm_buffer_release(&buffer);
    Py_END_ALLOW_THREADS;
    if (code == 0) {
        exchange->out.envelope.stream_device = -1; // the copy is on no stream
        return 0;
    }
    wm_py_raise(&err);
    tell_receiver(exchange);
    return -1;
}

// Cancels a receive whose send could not begin. The exception stays.
static void
take_back(wm_op_t *receiving)
{
    PyObject *raised = PyErr_GetRaisedException();
    Py_BEGIN_ALLOW_THREADS;
    wm_op_cancel(receiving);
    (void)!wm_op_wait(receiving, NULL, NULL);
    Py_END_ALLOW_THREADS;
    wm_op_release_told(receiving);
    PyErr_SetRaisedException(raised);
}

// Begins both, the receive first. The sent buffer is taken before, because a
// message that has begun cannot be taken back.
static int
begin(exchange_t *exchange, wm_op_t **receiving, wm_op_t **sending)
{
    wm_buffer_t buffer;
    wm_error_t err;
    int code;
    if (look(exchange) < 0 || take_sent(exchange, &buffer) < 0)
        return -1;
    *receiving = wm_py_transfer_begin(&exchange->in, NULL,
                                      &exchange->received);
    if (*receiving == NULL) {
        tell_receiver(exchange);
        wm_buffer_release(&buffer);
        return -1;
    }
    WM_PY_UNLOCKED(code = wm_py_channel_begin_unlocked(
                       &exchange->out.channel, &exchange->out.envelope, false,
                       &buffer, sending, &err));
    wm_buffer_release(&buffer);
    if (code == 0)
        return 0;
    wm_py_raise(&err);
    take_back(*receiving);
    return -1;
}

// Does a call on a stream that is being captured.
static PyObject *
capture(PyObject *self, exchange_t *exchange)
{
    const wm_transfer_t *both[] = {&exchange->in, &exchange->out};
    if (look(exchange) < 0)
        return NULL;
    bool apart = is_overwritten(exchange);
    bool is_short = exchange->sent.buffer.nbytes <= WM_PORT_LL_BYTES;
    wm_py_message_release(&exchange->received);
    wm_py_message_release(&exchange->sent);
    if (apart && !is_short) {
        wm_py_fail(PyExc_ValueError,
                   "recvbuf: it overlaps the memory that is sent, and in a "
                   "CUDA graph at most %d bytes are sent so: send a copy",
                   WM_PORT_LL_BYTES);
        return NULL;
    }
    return wm_py_captured_run(self, both, 2, apart);
}

static PyObject *
run(PyObject *self, exchange_t *exchange)
{
    wm_op_t *receiving = NULL, *sending = NULL;
    int code = wm_py_channel_is_captured(&exchange->out.channel,
                                         &exchange->out.envelope);
    if (code != 0)
        return code < 0 ? NULL : capture(self, exchange);
    exchange->in.envelope.uncaptured = true;
    exchange->out.envelope.uncaptured = true;
    code = begin(exchange, &receiving, &sending);
    if (code == 0) {
        wm_waiting_call.type = exchange->received.type;
        code = wm_py_wait(receiving, exchange->in.status);
        if (code == 0) { // not interrupted, or received data would be lost
            wm_error_t err;
            WM_PY_UNLOCKED(code = wm_op_wait(sending, NULL, &err));
            if (code < 0)
                wm_py_raise(&err);
        }
        else
            WM_PY_UNLOCKED(wm_send_flush()); // what follows comes behind it
        wm_op_release_told(receiving);
        wm_op_release_told(sending); // else the operation completes by itself
    }
    wm_py_message_release(&exchange->received);
    wm_py_message_release(&exchange->sent);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

// Makes one request for both ends.
static PyObject *
request(PyObject *self, exchange_t *exchange)
{
    wm_op_t *receiving = NULL, *sending = NULL;
    (void)self;
    int code = begin(exchange, &receiving, &sending);
    wm_message_t none = {0};
    wm_py_message_release(&exchange->received); // the operations hold these
    wm_py_message_release(&exchange->sent);
    if (code < 0)
        return NULL;
    wm_op_t *both;
    WM_PY_UNLOCKED(both = wm_pair_begin(receiving, sending));
    return both != NULL ? wm_py_request_new(both, MPI_REQUEST_NULL, &none)
                        : PyErr_NoMemory();
}

#define EXCHANGE(name, replaces, blocking, finish)                            \
    PyObject *wm_py_comm_##name(PyObject *self, PyObject *const *args,        \
                                Py_ssize_t given, PyObject *keywords)         \
    {                                                                         \
        exchange_t exchange;                                                  \
        return parse(#name, self, args, given, keywords, replaces, blocking,  \
                     &exchange)                                               \
                       < 0                                                    \
                   ? NULL                                                     \
                   : finish(self, &exchange);                                 \
    }

const char wm_py_comm_Sendrecv_doc[] = PyDoc_STR(
    "Sendrecv($self, /, sendbuf, dest, sendtag=0, recvbuf=None, "
    "source=mpi4py.MPI.ANY_SOURCE, recvtag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Send one array and receive another at the same time.\n\n"
    "sendbuf and recvbuf: GPU or host arrays, as for Send and Recv.\n"
    "recvbuf must be given. If it overlaps sendbuf, or is the same\n"
    "array, a copy of sendbuf is sent, as by Sendrecv_replace. The\n"
    "call is ordered and raises as Send and Recv.");
EXCHANGE(Sendrecv, false, true, run)

const char wm_py_comm_Sendrecv_replace_doc[] = PyDoc_STR(
    "Sendrecv_replace($self, /, buf, dest, sendtag=0, "
    "source=mpi4py.MPI.ANY_SOURCE, recvtag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Send an array and receive into the same array.\n\n"
    "buf: a GPU or host array, as for Recv. A copy is sent, which is made\n"
    "on the GPU of a GPU array. Ordered and raises as Send and Recv.");
EXCHANGE(Sendrecv_replace, true, true, run)

const char wm_py_comm_Isendrecv_doc[] = PyDoc_STR(
    "Isendrecv($self, /, sendbuf, dest, sendtag=0, recvbuf=None, "
    "source=mpi4py.MPI.ANY_SOURCE, recvtag=mpi4py.MPI.ANY_TAG)\n--\n\n"
    "Begin to send one array and to receive another; returns a wm.Request\n"
    "that ends when both have, with the status of the receive.\n\n"
    "sendbuf and recvbuf: GPU or host arrays, as for Isend and Irecv.");
EXCHANGE(Isendrecv, false, false, request)

const char wm_py_comm_Isendrecv_replace_doc[] = PyDoc_STR(
    "Isendrecv_replace($self, /, buf, dest, sendtag=0, "
    "source=mpi4py.MPI.ANY_SOURCE, recvtag=mpi4py.MPI.ANY_TAG)\n--\n\n"
    "Begin to send a copy of an array and to receive into it; returns a\n"
    "wm.Request.\n\n"
    "buf: a GPU or host array, as for Irecv.");
EXCHANGE(Isendrecv_replace, true, false, request)
