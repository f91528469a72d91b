// SPDX-License-Identifier: BSD-3-Clause
// The calls of wm.Comm that take GPU arrays, as a mixin without state of its
// own, so that one set of methods serves every kind of communicator; and the
// same calls bound to a stream (comm.on(stream)).
#include <stdbool.h>

#include "comm/coll/coll.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "comm/watch/hang.h"
#include "python/comm/py_transport.h"
#include "python/message/channel.h"
#include "python/message/exchange.h"
#include "python/message/probe.h"
#include "python/request/prequest.h"
#include "python/request/py_partitioned.h"
#include "python/request/py_request.h"
#include "python/view/view.h"

typedef struct {
    PyObject_HEAD
    PyObject *comm;
    PyObject *stream_object;
    CUstream stream;
    int device;
} on_stream_t;

static PyTypeObject *on_stream_type;

int
wm_py_channel_get(PyObject *self, wm_channel_t *channel)
{
    MPI_Comm handle;
    *channel = (wm_channel_t){.device = -1};
    if (Py_TYPE(self) == on_stream_type) {
        on_stream_t *bound = (on_stream_t *)self;
        channel->stream = bound->stream;
        channel->device = bound->device;
        channel->owner = bound->stream_object;
        self = bound->comm;
    }
    if (wm_py_mpi_comm(self, "self", &handle) < 0)
        return -1;
    wm_error_t err;
    if (wm_engine_check(&err) < 0) {
        wm_py_raise(&err);
        return -1;
    }
    if (handle == MPI_COMM_NULL) {
        wm_error_set(&err, WM_ERR_MPI, MPI_ERR_COMM,
                     "this communicator is MPI.COMM_NULL, or was freed");
        wm_py_raise(&err);
        return -1;
    }
    channel->comm = wm_comm_find(handle);
    if (channel->comm == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this communicator is not attached: make it by "
                        "wm.Comm(comm), on all its ranks; where another "
                        "library initialized MPI after install(), call that "
                        "again");
        return -1;
    }
    return 0;
}

// Parses the buffer. -1 with an exception, after the receiver was told where
// he may wait.
static int
parse(const wm_channel_t *channel, PyObject *object, const char *argument,
      const wm_envelope_t *envelope, bool receives, wm_message_t *message)
{
    if (wm_py_argument_no_none(object, argument, envelope->rank) == 0
        && wm_py_message_parse(object, receives, argument, message) == 0) {
        wm_py_channel_keep(channel, message);
        return 0;
    }
    if (!receives)
        wm_py_channel_tell_receiver(channel, envelope);
    return -1;
}

// `request`, unless NULL: gets its MPI request, in the same go without the
// GIL.
static wm_op_t *
begin(const wm_channel_t *channel, PyObject *object, const char *argument,
      const wm_envelope_t *envelope, bool receives, MPI_Request *request,
      wm_message_t *message)
{
    wm_error_t err;
    wm_op_t *op = NULL;
    int code;
    if (parse(channel, object, argument, envelope, receives, message) < 0)
        return NULL;
    wm_buffer_t buffer = wm_py_message_take(message);
    Py_BEGIN_ALLOW_THREADS;
    code = wm_py_channel_begin_unlocked(channel, envelope, receives, &buffer,
                                        &op, &err);
    if (code == 0 && request != NULL && op->has_request) {
        *request = op->request;
        wm_engine_notify();
    }
    else if (code == 0 && request != NULL) {
        code = wm_request_start(op, request, &err);
        if (code < 0)
            wm_op_release(op); // it ends by itself
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

wm_op_t *
wm_py_channel_begin(const wm_channel_t *channel, PyObject *object,
                    const char *argument, const wm_envelope_t *envelope,
                    bool receives, wm_message_t *message)
{
    return begin(channel, object, argument, envelope, receives, NULL, message);
}

// A message from its beginning to its end, without the GIL in one go.
static PyObject *
run(const wm_channel_t *channel, const char *function, PyObject *object,
    const wm_envelope_t *envelope, bool receives, MPI_Status *status)
{
    wm_error_t err;
    wm_message_t message;
    wm_op_t *op = NULL;
    int code;
    if (parse(channel, object, "buf", envelope, receives, &message) < 0)
        return NULL;
    wm_buffer_t buffer = wm_py_message_take(&message);
    wm_call = (wm_call_t){.name = function, .type = message.type};
    Py_BEGIN_ALLOW_THREADS;
    code = wm_py_channel_begin_unlocked(channel, envelope, receives, &buffer,
                                        &op, &err);
    if (code == 0)
        code = wm_py_wait_unlocked(op, status, &err);
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

typedef enum {
    STANDARD, // and ready
    SYNCHRONOUS,
    BUFFERED,
} send_mode_t;

static PyObject *
send(PyObject *self, const char *function, PyObject *const *args,
     Py_ssize_t given, PyObject *keywords, bool blocking, send_mode_t mode)
{
    static const char *const names[] = {"buf", "dest", "tag"};
    PyObject *values[3];
    wm_channel_t channel;
    int dest, tag = 0;
    wm_message_t message;
    if (wm_py_arguments(function, names, 3, 2, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[1], "dest", &dest) < 0
        || wm_py_argument_int(values[2], "tag", &tag) < 0)
        return NULL;
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, dest, tag,
                                                    blocking);
    envelope.synchronous = mode == SYNCHRONOUS;
    envelope.buffered = mode == BUFFERED;
    if (blocking)
        return run(&channel, function, values[0], &envelope, false, NULL);
    MPI_Request request;
    wm_op_t *op = begin(&channel, values[0], "buf", &envelope, false, &request,
                        &message);
    return op != NULL ? wm_py_request_new(op, request, &message) : NULL;
}

#define SEND(name, blocking, mode)                                            \
    static PyObject *comm_##name(PyObject *self, PyObject *const *args,       \
                                 Py_ssize_t given, PyObject *keywords)        \
    {                                                                         \
        return send(self, #name, args, given, keywords, blocking, mode);      \
    }

#define SEND_DOC(name, what)                                                  \
    PyDoc_STRVAR(comm_##name##_doc,                                           \
                 #name "($self, /, buf, dest, tag=0)\n--\n\n" what            \
                       "\n\nbuf: an array on any device or the "              \
                       "host, or\n[array, count, datatype] as mpi4py has "    \
                       "them. Ordered after the work of\nthe array's own "    \
                       "stream. Raises MPI.Exception (rank, tag), TypeError " \
                       "or\nValueError (buffer), wm.CudaError.")

SEND(Send, true, STANDARD)
SEND_DOC(Send, "Send an array; returns when it may be changed.");
SEND(Ssend, true, SYNCHRONOUS)
SEND_DOC(Ssend, "Send an array; returns when its receive has begun.");
SEND(Rsend, true, STANDARD)
SEND_DOC(Rsend, "Send an array whose receive is posted already.");
SEND(Isend, false, STANDARD)
SEND_DOC(Isend, "Begin to send an array; returns a wm.Request.");
SEND(Issend, false, SYNCHRONOUS)
SEND_DOC(Issend, "Begin a synchronous send; returns a wm.Request.");
SEND(Irsend, false, STANDARD)
SEND_DOC(Irsend, "Begin a ready send; returns a wm.Request.");
SEND(Bsend, true, BUFFERED)
SEND_DOC(Bsend, "Send a copy, which counts against the attached buffer.");
SEND(Ibsend, false, BUFFERED)
SEND_DOC(Ibsend, "Begin a buffered send; the wm.Request has ended.");

static PyObject *
receive(PyObject *self, PyObject *const *args, Py_ssize_t given,
        PyObject *keywords, bool blocking)
{
    static const char *const names[] = {"buf", "source", "tag", "status"};
    PyObject *values[4];
    wm_channel_t channel;
    int source = MPI_ANY_SOURCE, tag = MPI_ANY_TAG;
    MPI_Status *status;
    wm_message_t message;
    if (wm_py_arguments(blocking ? "Recv" : "Irecv", names, blocking ? 4 : 3,
                        1, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[1], "source", &source) < 0
        || wm_py_argument_int(values[2], "tag", &tag) < 0
        || wm_py_mpi_status(blocking ? values[3] : NULL, "status", &status)
               < 0)
        return NULL;
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, source, tag,
                                                    blocking);
    if (blocking)
        return run(&channel, "Recv", values[0], &envelope, true, status);
    MPI_Request request;
    envelope.requested = true;
    wm_op_t *op = begin(&channel, values[0], "buf", &envelope, true, &request,
                        &message);
    return op != NULL ? wm_py_request_new(op, request, &message) : NULL;
}

PyDoc_STRVAR(comm_Recv_doc,
             "Recv($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
             "tag=mpi4py.MPI.ANY_TAG, status=None)\n--\n\n"
             "Receive into an array; the data are there when it returns.\n\n"
             "buf: a writable array on any device or the host,\n"
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
             "Irecv($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
             "tag=mpi4py.MPI.ANY_TAG)\n--\n\n"
             "Begin to receive into an array; returns a wm.Request.\n\n"
             "buf: as for Recv; the data are there when the request's Wait or "
             "Test\nsays so, which also raises what goes wrong by then.");

static PyObject *
comm_Irecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
           PyObject *keywords)
{
    return receive(self, args, given, keywords, false);
}

static PyObject *
make_persistent(PyObject *self, PyObject *buf, bool receives,
                const wm_channel_t *channel, const wm_envelope_t *envelope)
{
    wm_error_t err;
    wm_message_t message;
    if (wm_comm_check(channel->comm, receives ? "source" : "dest",
                      envelope->rank, envelope->tag, receives, &err)
        < 0)
        return wm_py_raise(&err);
    if (wm_py_argument_no_none(buf, "buf", envelope->rank) < 0)
        return NULL;
    // What reads it may change the list.
    buf = PyList_Check(buf) ? PyList_AsTuple(buf) : Py_NewRef(buf);
    PyObject *made = NULL;
    if (buf != NULL
        && wm_py_message_parse(buf, receives, "buf", &message) == 0) {
        wm_py_channel_keep(channel, &message);
        made = wm_py_prequest_new(wm_py_prequest_type(), self, channel, buf,
                                  receives, envelope, &message);
    }
    Py_XDECREF(buf);
    return made;
}

static PyObject *
send_init(PyObject *self, const char *function, PyObject *const *args,
          Py_ssize_t given, PyObject *keywords, send_mode_t mode)
{
    static const char *const names[] = {"buf", "dest", "tag"};
    PyObject *values[3];
    wm_channel_t channel;
    int dest, tag = 0;
    if (wm_py_arguments(function, names, 3, 2, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[1], "dest", &dest) < 0
        || wm_py_argument_int(values[2], "tag", &tag) < 0)
        return NULL;
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, dest, tag,
                                                    false);
    envelope.synchronous = mode == SYNCHRONOUS;
    envelope.buffered = mode == BUFFERED;
    return make_persistent(self, values[0], false, &channel, &envelope);
}

#define SEND_INIT(name, mode)                                                 \
    static PyObject *comm_##name(PyObject *self, PyObject *const *args,       \
                                 Py_ssize_t given, PyObject *keywords)        \
    {                                                                         \
        return send_init(self, #name, args, given, keywords, mode);           \
    }

SEND_INIT(Send_init, STANDARD);
SEND_DOC(Send_init, "Make a wm.Prequest that sends an array at each Start.");
SEND_INIT(Ssend_init, SYNCHRONOUS);
SEND_DOC(Ssend_init, "Make a wm.Prequest whose sends are synchronous.");
SEND_INIT(Rsend_init, STANDARD);
SEND_DOC(Rsend_init, "Make a wm.Prequest whose sends are ready ones.");
SEND_INIT(Bsend_init, BUFFERED);
SEND_DOC(Bsend_init, "Make a wm.Prequest whose sends are buffered.");

PyDoc_STRVAR(comm_Recv_init_doc,
             "Recv_init($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
             "tag=mpi4py.MPI.ANY_TAG)\n--\n\n"
             "Make a wm.Prequest that receives into an array at each Start.");

static PyObject *
comm_Recv_init(PyObject *self, PyObject *const *args, Py_ssize_t given,
               PyObject *keywords)
{
    static const char *const names[] = {"buf", "source", "tag"};
    PyObject *values[3];
    wm_channel_t channel;
    int source = MPI_ANY_SOURCE, tag = MPI_ANY_TAG;
    if (wm_py_arguments("Recv_init", names, 3, 1, args, given, keywords,
                        values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[1], "source", &source) < 0
        || wm_py_argument_int(values[2], "tag", &tag) < 0)
        return NULL;
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, source, tag,
                                                    false);
    return make_persistent(self, values[0], true, &channel, &envelope);
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
    if (wm_py_mpi_comm(self, "self", &handle) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_comm_attach(handle, &comm, &err);
    Py_END_ALLOW_THREADS;
    return code < 0 ? wm_py_raise(&err) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_is_attached_doc,
             "_is_attached($self, /)\n--\n\n"
             "Whether there are private communicators behind this handle; "
             "local.");

static PyObject *
comm_is_attached(PyObject *self, PyObject *unused)
{
    (void)unused;
    MPI_Comm handle;
    if (wm_py_mpi_comm(self, "self", &handle) < 0)
        return NULL;
    return PyBool_FromLong(handle != MPI_COMM_NULL
                           && wm_comm_find(handle) != NULL);
}

PyDoc_STRVAR(comm_revoke_doc,
             "_revoke($self)\n--\n\n"
             "End all ranks' calls on what is behind the communicator.");

static PyObject *
comm_revoke(PyObject *self, PyObject *unused)
{
    (void)unused;
    wm_channel_t channel;
    wm_error_t err;
    if (wm_py_channel_get(self, &channel) < 0)
        return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_lock();
    code = wm_failure_revoke(channel.comm, &err);
    wm_engine_unlock();
    Py_END_ALLOW_THREADS;
    return code < 0 ? wm_py_raise(&err) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(comm_refuse_doc,
             "_refuse($self)\n--\n\n"
             "Tell the other ranks, who are in a Bcast, or will be, that it\n"
             "failed here.");

static PyObject *
comm_refuse(PyObject *self, PyObject *unused)
{
    (void)unused;
    wm_channel_t channel;
    if (wm_py_channel_get(self, &channel) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    wm_coll_refuse(channel.comm);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(comm_on_doc,
             "on($self, stream, /)\n--\n\n"
             "The same message calls, ordered on a stream.\n\n"
             "A send reads what the work before it on the stream has written, "
             "a\nreceive is seen by the work after it; the device is not "
             "synchronised.\nstream: wm.Stream, one of CuPy's, Torch's, "
             "Warp's, Numba's, any object\nwith __cuda_stream__, or a "
             "handle. Raises\nValueError for the per-thread default stream, "
             "which is another one on\neach thread; the calls raise "
             "RuntimeError while the stream is captured\ninto a CUDA "
             "graph.");

static PyObject *
comm_on(PyObject *self, PyObject *stream)
{
    on_stream_t *bound = PyObject_GC_New(on_stream_t, on_stream_type);
    if (bound == NULL)
        return NULL;
    bound->comm = Py_NewRef(self);
    bound->stream_object = Py_NewRef(stream);
    int code = wm_py_stream_from_object(stream, "stream", &bound->device,
                                        &bound->stream);
    if (code == 0 && bound->stream == CU_STREAM_PER_THREAD) {
        PyErr_SetString(
            PyExc_ValueError,
            "stream: the per-thread default stream is another one on each "
            "thread, and any thread may serve a message; use a stream of its "
            "own, such as wm.Stream(), or the legacy default stream");
        code = -1;
    }
    if (code < 0)
        Py_CLEAR(bound);
    else
        PyObject_GC_Track(bound);
    return (PyObject *)bound;
}

#define FAST(name)                                                            \
    {                                                                         \
#name, (PyCFunction)(void (*)(void))comm_##name,                      \
            METH_FASTCALL | METH_KEYWORDS, comm_##name##_doc                  \
    }
// In a file of its own.
#define OTHER(name, function)                                                 \
    {                                                                         \
#name, (PyCFunction)(void (*)(void))wm_py_comm_##function,            \
            METH_FASTCALL | METH_KEYWORDS, wm_py_comm_##function##_doc        \
    }
#define MESSAGES                                                              \
    FAST(Send), FAST(Ssend), FAST(Rsend), FAST(Isend), FAST(Issend),          \
        FAST(Irsend), FAST(Bsend), FAST(Ibsend), FAST(Recv), FAST(Irecv),     \
        FAST(Send_init), FAST(Ssend_init), FAST(Rsend_init),                  \
        FAST(Bsend_init), FAST(Recv_init), OTHER(Sendrecv, sendrecv),         \
        OTHER(Sendrecv_replace, sendrecv_replace),                            \
        OTHER(Isendrecv, isendrecv),                                          \
        OTHER(Isendrecv_replace, isendrecv_replace),                          \
        OTHER(Psend_init, psend_init), OTHER(Precv_init, precv_init)

static PyMethodDef comm_methods[] = {
    MESSAGES,
    OTHER(Probe, probe),
    OTHER(Iprobe, iprobe),
    OTHER(Mprobe, mprobe),
    OTHER(Improbe, improbe),
    {"_attach", comm_attach, METH_NOARGS, comm_attach_doc},
    {"_is_attached", comm_is_attached, METH_NOARGS, comm_is_attached_doc},
    {"_revoke", comm_revoke, METH_NOARGS, comm_revoke_doc},
    {"_refuse", comm_refuse, METH_NOARGS, comm_refuse_doc},
    {"on", comm_on, METH_O, comm_on_doc},
    {"_transport", (PyCFunction)(void (*)(void))wm_py_comm_transport,
     METH_FASTCALL, wm_py_comm_transport_doc},
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
    .name = "warpmpi.CommMethods",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = comm_slots,
};

static void
on_stream_dealloc(PyObject *object)
{
    on_stream_t *self = (on_stream_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->stream_object);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// Nothing is cleared: as of a tuple, another object of a cycle is.
static int
on_stream_traverse(PyObject *object, visitproc visit, void *arg)
{
    on_stream_t *self = (on_stream_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->comm);
    Py_VISIT(self->stream_object);
    return 0;
}

static PyMethodDef on_stream_methods[] = {MESSAGES, {0}};

PyDoc_STRVAR(on_stream_doc,
             "Message calls of a communicator, ordered on one stream.");

static PyType_Slot on_stream_slots[] = {
    {Py_tp_doc, (void *)on_stream_doc},
    {Py_tp_dealloc, on_stream_dealloc},
    {Py_tp_traverse, on_stream_traverse},
    {Py_tp_methods, on_stream_methods},
    {0},
};

static PyType_Spec on_stream_spec = {
    .name = "warpmpi.StreamComm",
    .basicsize = sizeof(on_stream_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = on_stream_slots,
};

int
wm_py_add_comm(PyObject *module)
{
    if (wm_py_add_child(module) < 0 || wm_py_mpi_import() < 0)
        return -1;
    PyObject *bases = PyTuple_Pack(1, wm_py_state()->collectives_type);
    if (bases == NULL)
        return -1;
    PyObject *comm = PyType_FromModuleAndSpec(module, &comm_spec, bases);
    Py_DECREF(bases);
    PyObject *bound = PyType_FromModuleAndSpec(module, &on_stream_spec, NULL);
    wm_py_state()->comm_type = (PyTypeObject *)comm;
    on_stream_type = (PyTypeObject *)bound;
    if (comm == NULL || bound == NULL
        || PyModule_AddObjectRef(module, "CommMethods", comm) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "StreamComm", bound);
}
