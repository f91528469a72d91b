// SPDX-License-Identifier: BSD-3-Clause
// The core of warpmpi/_objects/: messages of a pickled object's bytes, which
// are received into memory of their own size.
#include <stdbool.h>

#include "comm/diagnostics/hang.h"
#include "python/message/channel.h"
#include "python/comm/matched.h"
#include "python/core/mpi4py.h"
#include "python/objects/objects.h"
#include "python/request/handles.h"
#include "python/request/py_request.h"
#include "python/request/requests.h"

// A buffer of the bytes that have been received, or are being received.
typedef struct {
    PyObject_HEAD
    wm_op_t *op;          // its communicator is retained for embedded arrays
    wm_message_t message; // of a buffer of the user
} payload_t;

static void
payload_dealloc(PyObject *object)
{
    payload_t *self = (payload_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->op != NULL) {
        wm_comm_release(self->op->comm);
        wm_op_release_told(self->op);
    }
    wm_py_message_release(&self->message);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// There is no clear slot: as with a tuple, another object of a cycle is
// cleared.
static int
payload_traverse(PyObject *object, visitproc visit, void *arg)
{
    payload_t *self = (payload_t *)object;
    Py_VISIT(Py_TYPE(object));
    return wm_py_message_traverse(&self->message, visit, arg);
}

static Py_ssize_t
payload_length(PyObject *object)
{
    const wm_op_t *op = ((payload_t *)object)->op;
    if (!atomic_load(&op->done) || op->result.cancelled || op->error.code != 0)
        return 0;
    return (Py_ssize_t)op->result.nbytes;
}

static int
payload_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    payload_t *self = (payload_t *)object;
    return PyBuffer_FillInfo(view, object, wm_op_buffer(self->op)->data,
                             payload_length(object), 1, flags);
}

static PyObject *
payload_get_source(PyObject *object, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(((payload_t *)object)->op->result.source);
}

static PyObject *
payload_get_pickled(PyObject *object, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_receive_is_pickled(((payload_t *)object)->op));
}

static PyGetSetDef payload_getters[] = {
    {"pickled", payload_get_pickled, NULL, "True if an object was sent.",
     NULL},
    {"source", payload_get_source, NULL, "The rank it came from.", NULL},
    {0},
};

PyDoc_STRVAR(payload_doc, "The bytes of an object that has been received.");

static PyType_Slot payload_slots[] = {
    {Py_tp_doc, (void *)payload_doc},
    {Py_tp_dealloc, payload_dealloc},
    {Py_tp_traverse, payload_traverse},
    {Py_tp_getset, payload_getters},
    {Py_sq_length, payload_length},
    {Py_bf_getbuffer, payload_getbuffer},
    {0},
};

PyType_Spec wm_py_payload_spec = {
    .name = "warpmpi._core._Payload",
    .basicsize = sizeof(payload_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = payload_slots,
};

// Finds the memory to receive into: memory that grows, at most so many bytes,
// or the user's own.
static int
look_at_buffer(PyObject *object, wm_message_t *message, wm_buffer_t *buffer)
{
    *message = (wm_message_t){0};
    *buffer = (wm_buffer_t){
        .nbytes = SIZE_MAX,
        .memory = {.device = -1},
        .grows = true,
    };
    if (object == Py_None)
        return 0;
    // Arrays have __index__ too, which raises unless they are numbers.
    if (PyIndex_Check(object)) {
        Py_ssize_t most = PyNumber_AsSsize_t(object, PyExc_OverflowError);
        if (most < 0 && !PyErr_Occurred())
            PyErr_Format(PyExc_ValueError,
                         "buf=%zd is not a size: give 0 or more", most);
        buffer->nbytes = (size_t)most;
        if (!PyErr_Occurred())
            return 0;
        if (!PyErr_ExceptionMatches(PyExc_TypeError)
            || !PyObject_CheckBuffer(object))
            return -1;
        PyErr_Clear();
    }
    int device = wm_py_message_claims_device(object);
    if (device != 0) {
        if (device > 0)
            PyErr_SetString(
                PyExc_TypeError,
                "buf: pickled objects are received into host memory, "
                "not into GPU memory: omit buf, or give a bytearray");
        return -1;
    }
    if (wm_py_message_parse(object, true, "buf", message) < 0)
        return -1;
    *buffer = wm_py_message_detach(message);
    buffer->numbers = false; // a pickle is received, whatever the elements
    buffer->element = 0;
    return 0;
}

// Begins to receive an object on a communicator, or from a matched message.
// Returns NULL with an exception.
static payload_t *
begin_receive(PyObject *target, PyObject *buf, int source, int tag,
              bool blocking)
{
    wm_channel_t channel;
    wm_buffer_t buffer;
    wm_error_t err;
    bool matched = wm_py_matched_is_full(target);
    if (!matched && wm_py_channel_get(target, &channel) < 0)
        return NULL;
    payload_t *self = PyObject_GC_New(payload_t, wm_py_state->payload_type);
    if (self == NULL)
        return NULL;
    self->op = NULL;
    if (!matched && source == MPI_PROC_NULL)
        buf = Py_None;
    int code = look_at_buffer(buf, &self->message, &buffer);
    // Retained before the receive can end, when the last reference may go.
    wm_comm_t *comm = matched ? wm_py_matched_comm(target) : channel.comm;
    wm_comm_retain(comm);
    if (code == 0 && matched)
        code = wm_py_matched_begin(target, &buffer, blocking, &self->op);
    else if (code == 0) {
        wm_envelope_t envelope = wm_py_channel_envelope(&channel, source, tag,
                                                        blocking);
        WM_PY_UNLOCKED(code = wm_receive_begin(comm, &buffer, &envelope,
                                               &self->op, &err));
        if (code < 0)
            wm_py_raise(&err);
    }
    if (code < 0) {
        wm_comm_release(comm);
        Py_CLEAR(self);
        return NULL;
    }
    if (matched)
        wm_py_matched_let_go(target);
    PyObject_GC_Track(self);
    return self;
}

PyDoc_STRVAR(receive_doc,
             "_object_receive(target, buf, source, tag, status, /)\n--\n\n"
             "Receive the bytes of an object, from a communicator or from a\n"
             "wm.Message.");

static PyObject *
receive(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target, *buf, *from, *tagged, *given;
    MPI_Status *status;
    int source, tag;
    if (!PyArg_ParseTuple(args, "OOOOO:_object_receive", &target, &buf, &from,
                          &tagged, &given)
        || wm_py_argument_int(from, "source", &source) < 0
        || wm_py_argument_int(tagged, "tag", &tag) < 0
        || wm_py_mpi_status(given, "status", &status) < 0)
        return NULL;
    payload_t *payload = begin_receive(target, buf, source, tag, true);
    wm_hang_call("recv", false);
    if (payload != NULL && wm_py_wait(payload->op, status) < 0)
        Py_CLEAR(payload);
    return payload != NULL ? (PyObject *)payload
                           : wm_py_channel_fail(target, false);
}

PyDoc_STRVAR(ireceive_doc,
             "_object_ireceive(target, buf, source, tag, /)\n--\n\n"
             "Begin to receive the bytes of an object; return a wm.Request\n"
             "with a payload.");

static PyObject *
ireceive(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target, *buf, *from, *tagged;
    wm_message_t none = {0};
    int source, tag;
    if (!PyArg_ParseTuple(args, "OOOO:_object_ireceive", &target, &buf, &from,
                          &tagged)
        || wm_py_argument_int(from, "source", &source) < 0
        || wm_py_argument_int(tagged, "tag", &tag) < 0)
        return NULL;
    payload_t *payload = begin_receive(target, buf, source, tag, false);
    if (payload == NULL)
        return wm_py_channel_fail(target, false);
    wm_op_retain(payload->op);
    PyObject *request = wm_py_request_new(payload->op, MPI_REQUEST_NULL,
                                          &none);
    if (request != NULL)
        ((wm_request_t *)request)->payload = (PyObject *)payload;
    else
        Py_DECREF(payload);
    return request;
}

PyDoc_STRVAR(payload_of_doc,
             "_object_payload(request, /)\n--\n\n"
             "Return the payload of a request of an object, or None.");

static PyObject *
payload_of(PyObject *Py_UNUSED(module), PyObject *request)
{
    PyObject *ours = PyObject_TypeCheck(request, wm_py_mpi_request_type())
                         ? wm_py_handles_find(request)
                         : NULL;
    if (ours == NULL && PyObject_TypeCheck(request, wm_py_state->request_type))
        ours = Py_NewRef(request); // MPI has completed it
    PyObject *payload = ours != NULL ? ((wm_request_t *)ours)->payload : NULL;
    payload = Py_NewRef(payload != NULL ? payload : Py_None);
    Py_XDECREF(ours);
    return payload;
}

PyDoc_STRVAR(is_full_doc,
             "_object_matched(message, /)\n--\n\n"
             "Return True if a wm.Message has not been received yet. Raises\n"
             "MPI.Exception for a null message.");

static PyObject *
is_full(PyObject *Py_UNUSED(module), PyObject *message)
{
    return wm_py_matched_refuse_null(message) < 0
               ? NULL
               : PyBool_FromLong(wm_py_matched_is_full(message));
}

PyDoc_STRVAR(complete_doc,
             "_object_requests(name, requests, other, /)\n--\n\n"
             "Make mpi4py's lower-case call on a tuple of requests.");

static PyObject *
complete(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *name;
    PyObject *list, *other;
    if (!PyArg_ParseTuple(args, "sO!O:_object_requests", &name, &PyTuple_Type,
                          &list, &other))
        return NULL;
    return wm_py_requests_objects(name, list, other);
}

wm_op_t *
wm_py_payload_op(PyObject *object)
{
    if (Py_IS_TYPE(object, wm_py_state->payload_type))
        return ((payload_t *)object)->op;
    PyErr_Format(PyExc_TypeError, "%.200s is no payload",
                 Py_TYPE(object)->tp_name);
    return NULL;
}

PyMethodDef wm_py_objects_functions[] = {
    {"_object_receive", receive, METH_VARARGS, receive_doc},
    {"_object_ireceive", ireceive, METH_VARARGS, ireceive_doc},
    {"_object_payload", payload_of, METH_O, payload_of_doc},
    {"_object_matched", is_full, METH_O, is_full_doc},
    {"_object_requests", complete, METH_VARARGS, complete_doc},
    {0},
};
