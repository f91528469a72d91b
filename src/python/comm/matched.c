// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/matched.h"

#include "comm/diagnostics/hang.h"
#include "comm/engine/engine.h"
#include "python/message/channel.h"
#include "python/core/mpi4py.h"
#include "python/request/handles.h"
#include "python/request/py_request.h"

typedef struct {
    PyMPIMessageObject base; // MPI's handle: null even if `matched` is set
    // Zeroed by the allocator: the constructor is mpi4py's.
    PyObject *comm;       // NULL once the message was received
    wm_channel_t channel; // its communicator is retained until then
    wm_unexpected_t *matched;
    int source, tag;
} message_t;

// Returns the object that holds the message, for a copy another one.
static message_t *
holder_of(PyObject *object)
{
    PyObject *holder = wm_py_handles_message(object);
    return (message_t *)(holder != NULL ? holder : object);
}

// Gives the message back to its communicator, if MPI runs.
static void
give_back(wm_comm_t *comm, wm_unexpected_t *matched)
{
    if (wm_engine_check(NULL) < 0) {
        free(matched);
        return;
    }
    WM_PY_UNLOCKED(wm_matched_return(comm, matched));
}

PyObject *
wm_py_matched_new(PyObject *comm, wm_op_t *op)
{
    message_t *self = (message_t *)wm_py_mpi_new(wm_py_state->matched_type);
    wm_unexpected_t *matched;
    WM_PY_UNLOCKED(matched = wm_probe_matched(op));
    wm_channel_t channel;
    if (self == NULL || wm_py_channel_get(comm, &channel) < 0) {
        Py_XDECREF(self);
        if (matched != NULL)
            give_back(op->comm, matched);
        return NULL;
    }
    if (matched == NULL) {
        self->base.ob_mpi = MPI_MESSAGE_NO_PROC;
        return (PyObject *)self;
    }
    self->comm = Py_NewRef(comm);
    self->channel = channel;
    wm_comm_retain(channel.comm);
    self->matched = matched;
    self->source = op->result.source;
    self->tag = op->result.tag;
    return (PyObject *)self;
}

static void
let_go(message_t *self)
{
    if (self->comm != NULL)
        wm_comm_release(self->channel.comm);
    Py_CLEAR(self->comm);
}

void
wm_py_matched_let_go(PyObject *object)
{
    let_go(holder_of(object));
}

wm_comm_t *
wm_py_matched_comm(PyObject *object)
{
    return holder_of(object)->channel.comm;
}

static void
message_dealloc(PyObject *object)
{
    message_t *self = (message_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object); // releases below may run Python code
    if (self->matched != NULL)
        give_back(self->channel.comm, self->matched);
    self->matched = NULL;
    let_go(self);
    wm_py_mpi_message_type()->tp_dealloc(object);
    Py_DECREF(type);
}

// Only the deallocator gives the matched message back to `comm`, so `comm` is
// not cleared.
static int
message_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((message_t *)object)->comm);
    return wm_py_mpi_traverse(wm_py_mpi_message_type(), object, visit, arg);
}

static int
message_clear(PyObject *object)
{
    return wm_py_mpi_clear(wm_py_mpi_message_type(), object);
}

// Calls mpi4py's own method, for the message of PROC_NULL.
static PyObject *
call_base(PyObject *self, const char *name, PyObject *const *args,
          Py_ssize_t given, PyObject *keywords)
{
    PyObject *method = wm_py_mpi_attribute(wm_py_mpi_message_type(), name,
                                           NULL);
    PyObject *result = method != NULL ? wm_py_call_with(method, self, args,
                                                        given, keywords)
                                      : NULL;
    Py_XDECREF(method);
    return result;
}

bool
wm_py_matched_is_full(PyObject *object)
{
    return PyObject_TypeCheck(object, wm_py_state->matched_type)
           && holder_of(object)->matched != NULL;
}

int
wm_py_matched_refuse_null(PyObject *object)
{
    const message_t *self = holder_of(object);
    if (self->matched != NULL || self->base.ob_mpi != MPI_MESSAGE_NULL)
        return 0;
    return wm_py_mpi_fail(MPI_ERR_REQUEST,
                          "the message has been received already, or was "
                          "never matched: take one from Mprobe or Improbe");
}

int
wm_py_matched_begin(PyObject *object, wm_buffer_t *buffer, bool blocking,
                    wm_op_t **op)
{
    message_t *self = holder_of(object);
    wm_error_t err;
    int code = wm_py_check_running();
    if (code < 0 || self->matched == NULL) { // another thread has received it
        wm_buffer_release(buffer);
        return code < 0 ? -1 : wm_py_matched_refuse_null(object);
    }
    wm_envelope_t envelope = wm_py_channel_envelope(
        &self->channel, self->source, self->tag, blocking);
    envelope.matched = self->matched;
    self->matched = NULL;
    WM_PY_UNLOCKED(code = wm_receive_begin(self->channel.comm, buffer,
                                           &envelope, op, &err));
    if (code < 0)
        self->matched = envelope.matched;
    return wm_py_result(code, &err);
}

static PyObject *
receive(PyObject *object, PyObject *const *args, Py_ssize_t given,
        PyObject *keywords, bool blocking)
{
    static const char *const names[] = {"buf", "status"};
    const char *name = blocking ? "Recv" : "Irecv";
    message_t *self = holder_of(object);
    PyObject *values[2] = {NULL};
    wm_message_t message;
    MPI_Status *status;
    wm_op_t *op;
    if (wm_py_matched_refuse_null(object) < 0)
        return NULL;
    if (self->matched == NULL)
        return call_base(object, name, args, given, keywords);
    if (wm_py_arguments(name, names, 1 + blocking, 1, args, given, keywords,
                        values)
            < 0
        || wm_py_mpi_status(values[1], "status", &status) < 0
        || wm_py_message_parse(values[0], true, "buf", &message) < 0)
        return NULL;
    wm_buffer_t buffer = wm_py_message_detach(&message);
    if (wm_py_matched_begin(object, &buffer, blocking, &op) < 0) {
        wm_py_message_release(&message);
        return NULL;
    }
    if (!blocking) {
        PyObject *request = wm_py_request_new(op, MPI_REQUEST_NULL, &message);
        wm_py_matched_let_go(object);
        return request;
    }
    wm_waiting_call = (wm_waiting_call_t){.name = name, .type = message.type};
    int code = wm_py_wait(op, status);
    wm_op_release_told(op);
    wm_py_matched_let_go(object);
    wm_py_message_release(&message);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(message_Recv_doc,
             "Recv($self, /, buf, status=None)\n--\n\n"
             "Receive this message into a GPU or host array, as\n"
             "wm.Comm.Recv does.");

static PyObject *
message_Recv(PyObject *self, PyObject *const *args, Py_ssize_t given,
             PyObject *keywords)
{
    return receive(self, args, given, keywords, true);
}

PyDoc_STRVAR(message_Irecv_doc,
             "Irecv($self, /, buf)\n--\n\n"
             "Begin to receive this message into a GPU or host array, as\n"
             "wm.Comm.Irecv does; returns a wm.Request.");

static PyObject *
message_Irecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
              PyObject *keywords)
{
    return receive(self, args, given, keywords, false);
}

static int
message_bool(PyObject *object)
{
    message_t *self = holder_of(object);
    return self->matched != NULL || self->base.ob_mpi != MPI_MESSAGE_NULL;
}

static PyObject *
message_richcompare(PyObject *object, PyObject *other, int how)
{
    message_t *self = holder_of(object);
    if (self->matched == NULL || (how != Py_EQ && how != Py_NE)
        || !PyObject_TypeCheck(other, wm_py_mpi_message_type()))
        return wm_py_mpi_message_type()->tp_richcompare(object, other, how);
    return PyBool_FromLong((self == holder_of(other)) == (how == Py_EQ));
}

PyDoc_STRVAR(message_reduce_doc, "__reduce__($self, /)\n--\n\n"
                                 "Pickles null messages alone.");

static PyObject *
message_reduce(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (holder_of(object)->matched == NULL)
        return wm_py_mpi_call(wm_py_mpi_message_type(), "__reduce__", object,
                              NULL);
    return PyErr_Format(PyExc_ValueError,
                        "a matched message cannot be pickled: receive it");
}

static PyMethodDef message_methods[] = {
    WM_PY_FASTCALL("Recv", message_Recv),
    WM_PY_FASTCALL("Irecv", message_Irecv),
    {"__reduce__", message_reduce, METH_NOARGS, message_reduce_doc},
    {0},
};

PyDoc_STRVAR(message_doc,
             "Message(message=None)\n--\n\n"
             "A matched message of a wm.Comm (Mprobe, Improbe). Only its own\n"
             "Recv or Irecv receives it. If the object is deleted first, the\n"
             "message goes back to the front of its communicator's queue.");

static PyObject *
message_repr(PyObject *object)
{
    const message_t *self = holder_of(object);
    if (self->comm != NULL)
        return PyUnicode_FromFormat(
            "<warpmpi.Message from rank %d with tag %d, not received>",
            self->source, self->tag);
    return PyUnicode_FromFormat(
        "<warpmpi.Message%s>",
        self->base.ob_mpi == MPI_MESSAGE_NO_PROC ? " from MPI.PROC_NULL"
        : self->base.ob_mpi == MPI_MESSAGE_NULL  ? ", received"
                                                 : " of MPI");
}

static PyType_Slot message_slots[] = {
    {Py_tp_doc, (void *)message_doc},
    {Py_tp_repr, message_repr},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse},
    {Py_tp_clear, message_clear},
    {Py_tp_methods, message_methods},
    {Py_tp_richcompare, message_richcompare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_nb_bool, message_bool},
    {0},
};

PyType_Spec wm_py_matched_spec = {
    .name = "warpmpi.Message",
    .basicsize = sizeof(message_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = message_slots,
};
