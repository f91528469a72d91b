// SPDX-License-Identifier: BSD-3-Clause
// The calls of wm.Comm that take GPU arrays, as a mixin without state of its
// own, so that one set of methods serves every kind of communicator; and the
// same calls bound to a stream (comm.on(stream)).
#include <stdbool.h>
#include <string.h>

#include "comm/coll.h"
#include "comm/progress.h"
#include "comm/request.h"
#include "comm/stats.h"
#include "comm/transport.h"
#include "python/request.h"
#include "python/view.h"

typedef struct {
    PyObject_HEAD
    PyObject *comm;
    PyObject *stream_object;
    CUstream stream;
    int device;
} on_stream_t;

static PyTypeObject *on_stream_type;

// What a method works on: the communicator, and a stream where one was named.
typedef struct {
    wm_comm_t *comm;
    CUstream stream;
    int device; // -1: no stream
} channel_t;

static int
get_channel(PyObject *self, channel_t *channel)
{
    MPI_Comm handle;
    *channel = (channel_t){.device = -1};
    if (Py_TYPE(self) == on_stream_type) {
        on_stream_t *bound = (on_stream_t *)self;
        channel->stream = bound->stream;
        channel->device = bound->device;
        self = bound->comm;
    }
    if (wm_mpi_comm(self, "self", &handle) < 0)
        return -1;
    wm_error_t err;
    if (wm_engine_check(&err) < 0) {
        wm_raise(&err);
        return -1;
    }
    channel->comm = wm_comm_find(handle);
    if (channel->comm == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this communicator is not attached: make it by "
                        "wm.Comm(comm), on all its ranks");
        return -1;
    }
    return 0;
}

// Arguments by position or keyword into `values` (borrowed, NULL where not
// given); the first `required` must be there. Much cheaper than
// PyArg_Parse for the calls that are made a million times.
static int
parse(const char *function, const char *const *names, int count, int required,
      PyObject *const *args, Py_ssize_t given, PyObject *keywords,
      PyObject **values)
{
    if (given > count) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d arguments (%zd given)", function,
                     count, given);
        return -1;
    }
    for (int i = 0; i < count; ++i)
        values[i] = i < given ? args[i] : NULL;
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
        PyObject *name = PyTuple_GET_ITEM(keywords, k);
        int i = 0;
        while (i < count && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            ++i;
        if (i == count || values[i] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         i == count
                             ? "%s() got an unexpected keyword argument %R"
                             : "%s() got %R twice",
                         function, name);
            return -1;
        }
        values[i] = args[given + k];
    }
    for (int i = 0; i < required; ++i)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'",
                         function, names[i]);
            return -1;
        }
    return 0;
}

static int
integer(PyObject *object, const char *argument, int *value)
{
    if (object == NULL)
        return 0;
    long number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s: expected an int, not %.100s",
                         argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    if (number < INT_MIN || number > INT_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s=%ld does not fit an int",
                     argument, number);
        return -1;
    }
    *value = (int)number;
    return 0;
}

// Where CUDA failed while the buffer was looked at, the receiver may wait for
// the message already.
static void
tell_receiver(const channel_t *channel, const wm_envelope_t *envelope)
{
    PyObject *kind, *value, *trace;
    if (!PyErr_ExceptionMatches(wm_state()->cuda_error))
        return;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *text = value != NULL ? PyObject_Str(value) : NULL;
    const char *told = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    wm_send_failure(channel->comm, envelope, told != NULL ? told : "CUDA");
    PyErr_Clear();
    Py_XDECREF(text);
    PyErr_Restore(kind, value, trace);
}

// Parses the buffer and begins the message. NULL with an exception; the
// message is then released.
static wm_op_t *
begin(const channel_t *channel, PyObject *object, const char *argument,
      int rank, int tag, bool receives, bool synchronous,
      wm_message_t *message)
{
    wm_error_t err;
    wm_op_t *op = NULL;
    int code;
    wm_envelope_t envelope = {
        .rank = rank,
        .tag = tag,
        .synchronous = synchronous,
        .stream = channel->stream,
        .stream_device = channel->device,
    };
    if (wm_message_parse(object, receives, argument, message) < 0) {
        if (!receives)
            tell_receiver(channel, &envelope);
        return NULL;
    }
    wm_buffer_t buffer = wm_message_take(message);
    Py_BEGIN_ALLOW_THREADS;
    code = receives
               ? wm_receive_begin(channel->comm, &buffer, &envelope, &op, &err)
               : wm_send_begin(channel->comm, &buffer, &envelope, &op, &err);
    Py_END_ALLOW_THREADS;
    if (code < 0) {
        wm_message_release(message);
        wm_raise(&err);
        return NULL;
    }
    return op;
}

static PyObject *
send(PyObject *self, const char *function, PyObject *const *args,
     Py_ssize_t given, PyObject *keywords, bool blocking, bool synchronous)
{
    static const char *const names[] = {"buf", "dest", "tag"};
    PyObject *values[3];
    channel_t channel;
    int dest, tag = 0;
    wm_message_t message;
    if (parse(function, names, 3, 2, args, given, keywords, values) < 0
        || get_channel(self, &channel) < 0
        || integer(values[1], "dest", &dest) < 0
        || integer(values[2], "tag", &tag) < 0)
        return NULL;
    wm_op_t *op = begin(&channel, values[0], "buf", dest, tag, false,
                        synchronous, &message);
    if (op == NULL)
        return NULL;
    if (!blocking)
        return wm_request_new(op, &message);
    int code = wm_python_wait(op, NULL, NULL);
    wm_op_release(op);
    wm_message_release(&message);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

#define SEND(name, blocking, synchronous)                                     \
    static PyObject *comm_##name(PyObject *self, PyObject *const *args,       \
                                 Py_ssize_t given, PyObject *keywords)        \
    {                                                                         \
        return send(self, #name, args, given, keywords, blocking,             \
                    synchronous);                                             \
    }

#define SEND_DOC(name, what)                                                  \
    PyDoc_STRVAR(comm_##name##_doc,                                           \
                 #name "($self, /, buf, dest, tag=0)\n--\n\n" what            \
                       "\n\nbuf: a contiguous array on any device or the "    \
                       "host, or\n[array, count, datatype] as mpi4py has "    \
                       "them. Ordered after the work of\nthe array's own "    \
                       "stream. Raises MPI.Exception (rank, tag), TypeError " \
                       "or\nValueError (buffer), wm.CudaError.")

SEND(Send, true, false)
SEND_DOC(Send, "Send an array; returns when it may be changed.");
SEND(Ssend, true, true)
SEND_DOC(Ssend, "Send an array; returns when its receive has begun.");
SEND(Rsend, true, false)
SEND_DOC(Rsend, "Send an array whose receive is posted already.");
SEND(Isend, false, false)
SEND_DOC(Isend, "Begin to send an array; returns a wm.Request.");
SEND(Issend, false, true)
SEND_DOC(Issend, "Begin a synchronous send; returns a wm.Request.");
SEND(Irsend, false, false)
SEND_DOC(Irsend, "Begin a ready send; returns a wm.Request.");

static PyObject *
receive(PyObject *self, PyObject *const *args, Py_ssize_t given,
        PyObject *keywords, bool blocking)
{
    static const char *const names[] = {"buf", "source", "tag", "status"};
    PyObject *values[4];
    channel_t channel;
    int source = MPI_ANY_SOURCE, tag = MPI_ANY_TAG;
    MPI_Status *status;
    wm_message_t message;
    if (parse(blocking ? "Recv" : "Irecv", names, blocking ? 4 : 3, 1, args,
              given, keywords, values)
            < 0
        || get_channel(self, &channel) < 0
        || integer(values[1], "source", &source) < 0
        || integer(values[2], "tag", &tag) < 0
        || wm_mpi_status(blocking ? values[3] : NULL, "status", &status) < 0)
        return NULL;
    wm_op_t *op = begin(&channel, values[0], "buf", source, tag, true, false,
                        &message);
    if (op == NULL)
        return NULL;
    if (!blocking)
        return wm_request_new(op, &message);
    int code = wm_python_wait(op, &message, status);
    wm_op_release(op);
    wm_message_release(&message);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_Recv_doc,
             "Recv($self, /, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, "
             "status=None)\n--\n\n"
             "Receive into an array; the data are there when it returns.\n\n"
             "buf: a contiguous, writable array on any device or the host,\n"
             "whatever memory the sender's is in. Raises MPI.Exception\n"
             "(truncation, rank, tag), BufferError (read-only), "
             "wm.CudaError.");

static PyObject *
comm_Recv(PyObject *self, PyObject *const *args, Py_ssize_t given,
          PyObject *keywords)
{
    return receive(self, args, given, keywords, true);
}

PyDoc_STRVAR(comm_Irecv_doc,
             "Irecv($self, /, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)"
             "\n--\n\n"
             "Begin to receive into an array; returns a wm.Request.");

static PyObject *
comm_Irecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
           PyObject *keywords)
{
    return receive(self, args, given, keywords, false);
}

PyDoc_STRVAR(comm_Sendrecv_doc,
             "Sendrecv($self, /, sendbuf, dest, sendtag=0, recvbuf=None, "
             "source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None)"
             "\n--\n\n"
             "Send one array and receive another at the same time.");

static PyObject *
comm_Sendrecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
              PyObject *keywords)
{
    static const char *const names[] = {
        "sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status",
    };
    PyObject *values[7];
    channel_t channel;
    int dest, sendtag = 0, source = MPI_ANY_SOURCE, recvtag = MPI_ANY_TAG;
    MPI_Status *status;
    wm_message_t sent, received;
    if (parse("Sendrecv", names, 7, 2, args, given, keywords, values) < 0
        || get_channel(self, &channel) < 0
        || integer(values[1], "dest", &dest) < 0
        || integer(values[2], "sendtag", &sendtag) < 0
        || integer(values[4], "source", &source) < 0
        || integer(values[5], "recvtag", &recvtag) < 0
        || wm_mpi_status(values[6], "status", &status) < 0)
        return NULL;
    PyObject *into = values[3] != NULL ? values[3] : Py_None;
    wm_op_t *receiving = begin(&channel, into, "recvbuf", source, recvtag,
                               true, false, &received);
    if (receiving == NULL)
        return NULL;
    wm_op_t *sending = begin(&channel, values[0], "sendbuf", dest, sendtag,
                             false, false, &sent);
    if (sending == NULL) { // nothing was sent: take the receive back
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        wm_op_cancel(receiving);
        Py_BEGIN_ALLOW_THREADS;
        (void)!wm_op_wait(receiving, NULL, NULL);
        Py_END_ALLOW_THREADS;
        wm_op_release(receiving);
        wm_message_release(&received);
        PyErr_Restore(kind, value, trace);
        return NULL;
    }
    int code = wm_python_wait(receiving, &received, status);
    if (code == 0)
        code = wm_python_wait(sending, NULL, NULL);
    wm_op_release(receiving);
    wm_op_release(sending); // after a failed receive it ends by itself
    wm_message_release(&received);
    wm_message_release(&sent);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_Barrier_doc,
             "Barrier($self, /)\n--\n\n"
             "Wait for all ranks; GPU memory freed before it can be allocated "
             "after it.");

static PyObject *
comm_Barrier(PyObject *self, PyObject *unused)
{
    (void)unused;
    channel_t channel;
    wm_error_t err;
    int code;
    if (get_channel(self, &channel) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_coll_barrier(channel.comm, &err);
    Py_END_ALLOW_THREADS;
    return code < 0 ? wm_raise(&err) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_Bcast_doc,
             "Bcast($self, /, buf, root=0)\n--\n\n"
             "Send root's array to all ranks; GPU arrays go through "
             "page-locked\nhost memory. The counts must agree, the kinds of "
             "memory need not.");

static PyObject *
comm_Bcast(PyObject *self, PyObject *const *args, Py_ssize_t given,
           PyObject *keywords)
{
    static const char *const names[] = {"buf", "root"};
    PyObject *values[2];
    channel_t channel;
    wm_message_t message;
    wm_error_t err;
    int code, root = 0;
    if (parse("Bcast", names, 2, 1, args, given, keywords, values) < 0
        || get_channel(self, &channel) < 0
        || integer(values[1], "root", &root) < 0)
        return NULL;
    if (root < 0 || wm_comm_check(channel.comm, "root", root, 0, false, &err)
                        < 0) {
        if (root < 0)
            wm_error_set(&err, WM_ERR_MPI, MPI_ERR_ROOT,
                         "root=%d is not a rank of this communicator", root);
        return wm_raise(&err);
    }
    bool sends = channel.comm->rank == root;
    if (wm_message_parse(values[0], !sends, "buf", &message) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_coll_bcast(channel.comm, &message.buffer, root, &err);
    Py_END_ALLOW_THREADS;
    if (code == 0 && !sends)
        code = wm_message_unpack(&message, message.buffer.nbytes);
    else if (code < 0)
        wm_raise(&err);
    wm_message_release(&message);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

static int
check_reduction(const wm_message_t *send, const wm_message_t *receive)
{
    if (receive->type == MPI_DATATYPE_NULL || receive->user != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "recvbuf: MPI has no reduction for this element type; "
                        "convert to float32 first");
        return -1;
    }
    if (send != NULL && send->buffer.nbytes != receive->buffer.nbytes) {
        PyErr_Format(PyExc_ValueError,
                     "sendbuf has %zu bytes, recvbuf %zu; they must be equal",
                     send->buffer.nbytes, receive->buffer.nbytes);
        return -1;
    }
    if (send != NULL && send->type != receive->type) {
        PyErr_SetString(PyExc_TypeError,
                        "sendbuf and recvbuf have different element types; "
                        "give both the same");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(comm_Allreduce_doc,
             "Allreduce($self, /, sendbuf, recvbuf, op=MPI.SUM)\n--\n\n"
             "Reduce elementwise over all ranks; sendbuf may be MPI.IN_PLACE."
             "\nGPU arrays go through page-locked host memory.");

static PyObject *
comm_Allreduce(PyObject *self, PyObject *const *args, Py_ssize_t given,
               PyObject *keywords)
{
    static const char *const names[] = {"sendbuf", "recvbuf", "op"};
    PyObject *values[3];
    channel_t channel;
    wm_message_t sent, received;
    wm_error_t err;
    MPI_Op op = MPI_SUM;
    if (parse("Allreduce", names, 3, 2, args, given, keywords, values) < 0
        || get_channel(self, &channel) < 0
        || (values[2] != NULL && wm_mpi_op(values[2], "op", &op) < 0))
        return NULL;
    bool in_place = wm_mpi_is_in_place(values[0]);
    if (wm_message_parse(values[1], true, "recvbuf", &received) < 0)
        return NULL;
    if (!in_place
        && wm_message_parse(values[0], false, "sendbuf", &sent) < 0) {
        wm_message_release(&received);
        return NULL;
    }
    int code = check_reduction(in_place ? NULL : &sent, &received);
    if (code == 0) {
        Py_BEGIN_ALLOW_THREADS;
        code = wm_coll_allreduce(channel.comm, in_place ? NULL : &sent.buffer,
                                 &received.buffer, received.type,
                                 received.size, op, &err);
        Py_END_ALLOW_THREADS;
        if (code < 0)
            wm_raise(&err);
    }
    if (!in_place)
        wm_message_release(&sent);
    wm_message_release(&received);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_attach_doc,
             "_attach($self, /)\n--\n\n"
             "Make the private communicators behind this handle; collective.");

static PyObject *
comm_attach(PyObject *self, PyObject *unused)
{
    (void)unused;
    MPI_Comm handle;
    wm_comm_t *comm;
    wm_error_t err;
    int code;
    if (wm_mpi_comm(self, "self", &handle) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_comm_attach(handle, &comm, &err);
    Py_END_ALLOW_THREADS;
    return code < 0 ? wm_raise(&err) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_on_doc,
             "on($self, stream, /)\n--\n\n"
             "The same message calls, ordered on a stream.\n\n"
             "A send reads what the work before it on the stream has written, "
             "a\nreceive is seen by the work after it; the device is not "
             "synchronised.\nstream: wm.Stream, one of CuPy's, Torch's, "
             "Warp's, Numba's, any object\nwith __cuda_stream__, or a "
             "handle.");

static PyObject *
comm_on(PyObject *self, PyObject *stream)
{
    on_stream_t *bound = PyObject_New(on_stream_t, on_stream_type);
    if (bound == NULL)
        return NULL;
    bound->comm = Py_NewRef(self);
    bound->stream_object = Py_NewRef(stream);
    if (wm_stream_from_object(stream, "stream", &bound->device,
                              &bound->stream)
        < 0)
        Py_CLEAR(bound);
    return (PyObject *)bound;
}

PyDoc_STRVAR(comm_transport_doc,
             "_transport($self, rank, buffer, /)\n--\n\n"
             "(name, reason) of the path from a rank into a buffer.");

static PyObject *
comm_transport(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    channel_t channel;
    wm_error_t err;
    int rank;
    char reason[200] = "";
    wm_pointer_t into = {.kind = WM_MEMORY_HOST, .device = -1};
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "_transport() takes 2 arguments");
        return NULL;
    }
    if (get_channel(self, &channel) < 0 || integer(args[0], "rank", &rank) < 0)
        return NULL;
    if (rank < 0 || wm_comm_check(channel.comm, "rank", rank, 0, false, &err)
                        < 0) {
        PyErr_Format(PyExc_ValueError,
                     "rank=%d is not a rank of this communicator: use 0 to %d",
                     rank, channel.comm->size - 1);
        return NULL;
    }
    if (args[1] == Py_None) {
        int device;
        if (wm_device_from_object(Py_None, &device) < 0)
            return NULL;
        if (device >= 0)
            into = (wm_pointer_t){.kind = WM_MEMORY_DEVICE, .device = device};
    } else {
        wm_message_t message;
        if (wm_message_parse(args[1], false, "buffer", &message) < 0)
            return NULL;
        into = message.buffer.memory;
        wm_message_release(&message);
    }
    if (into.kind == WM_MEMORY_HOST || into.kind == WM_MEMORY_PINNED)
        return Py_BuildValue("ss", "mpi", "the buffer is host memory: MPI "
                                          "carries it from host memory");
    const wm_transport_t *transport = wm_transport_choose(
        channel.comm->peers[rank], &into, reason, sizeof reason);
    return Py_BuildValue("ss", transport->name, reason);
}

#define FAST(name)                                                            \
    {#name, (PyCFunction)(void (*)(void))comm_##name,                         \
     METH_FASTCALL | METH_KEYWORDS, comm_##name##_doc}
#define MESSAGES                                                              \
    FAST(Send), FAST(Ssend), FAST(Rsend), FAST(Isend), FAST(Issend),          \
        FAST(Irsend), FAST(Recv), FAST(Irecv), FAST(Sendrecv)

static PyMethodDef comm_methods[] = {
    MESSAGES,
    FAST(Bcast),
    FAST(Allreduce),
    {"Barrier", comm_Barrier, METH_NOARGS, comm_Barrier_doc},
    {"_attach", comm_attach, METH_NOARGS, comm_attach_doc},
    {"on", comm_on, METH_O, comm_on_doc},
    {"_transport", (PyCFunction)(void (*)(void))comm_transport, METH_FASTCALL,
     comm_transport_doc},
    {0},
};

PyDoc_STRVAR(comm_doc,
             "The calls that take GPU arrays, mixed into every communicator.");

static PyType_Slot comm_slots[] = {
    {Py_tp_doc, (void *)comm_doc},
    {Py_tp_methods, comm_methods},
    {0},
};

static PyType_Spec comm_spec = {
    .name = "warpmpi._core.CommMethods",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = comm_slots,
};

static void
on_stream_dealloc(PyObject *object)
{
    on_stream_t *self = (on_stream_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->stream_object);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef on_stream_methods[] = {MESSAGES, {0}};

PyDoc_STRVAR(on_stream_doc,
             "Message calls of a communicator, ordered on one stream.");

static PyType_Slot on_stream_slots[] = {
    {Py_tp_doc, (void *)on_stream_doc},
    {Py_tp_dealloc, on_stream_dealloc},
    {Py_tp_methods, on_stream_methods},
    {0},
};

static PyType_Spec on_stream_spec = {
    .name = "warpmpi._core.StreamComm",
    .basicsize = sizeof(on_stream_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = on_stream_slots,
};

PyDoc_STRVAR(stats_doc,
             "stats($module, /)\n--\n\n"
             "Counters of this process since its start or reset_stats(): a "
             "dict of ints.");

static PyObject *
stats(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *result = PyDict_New();
    for (int i = 0; i < WM_STATS && result != NULL; ++i) {
        PyObject *value = PyLong_FromLongLong(wm_stat_get(i));
        if (value == NULL
            || PyDict_SetItemString(result, wm_stat_name(i), value) < 0)
            Py_CLEAR(result);
        Py_XDECREF(value);
    }
    return result;
}

PyDoc_STRVAR(reset_stats_doc,
             "reset_stats($module, /)\n--\n\n"
             "Set the counters of stats() to 0, except what is open now.");

static PyObject *
reset_stats(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    wm_stat_reset();
    return Py_NewRef(Py_None);
}

PyDoc_STRVAR(is_on_device_doc,
             "is_on_device($module, obj, /)\n--\n\n"
             "Whether an array, or the array in a [array, …] list, is GPU "
             "memory.");

static PyObject *
is_on_device(PyObject *module, PyObject *object)
{
    (void)module;
    return PyBool_FromLong(wm_message_on_device(object));
}

static PyMethodDef functions[] = {
    {"stats", stats, METH_NOARGS, stats_doc},
    {"reset_stats", reset_stats, METH_NOARGS, reset_stats_doc},
    {"is_on_device", is_on_device, METH_O, is_on_device_doc},
    {0},
};

int
wm_python_add_comm(PyObject *module)
{
    if (wm_mpi_import() < 0 || PyModule_AddFunctions(module, functions) < 0)
        return -1;
    PyObject *comm = PyType_FromModuleAndSpec(module, &comm_spec, NULL);
    PyObject *bound = PyType_FromModuleAndSpec(module, &on_stream_spec, NULL);
    wm_state()->comm_type = (PyTypeObject *)comm;
    on_stream_type = (PyTypeObject *)bound;
    if (comm == NULL || bound == NULL
        || PyModule_AddObjectRef(module, "CommMethods", comm) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "StreamComm", bound);
}
