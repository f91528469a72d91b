// SPDX-License-Identifier: BSD-3-Clause
// The core of warpmpi/_objects/: arrays of GPU memory that are embedded in an
// object, one by one.
#include <stdbool.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/wait.h"
#include "python/message/channel.h"
#include "python/objects/objects.h"
#include "python/request/py_request.h"

PyDoc_STRVAR(bytes_doc, "_embedded_bytes(array, /)\n--\n\n"
                        "Return the number of bytes of an embedded array.");

static PyObject *
bytes(PyObject *Py_UNUSED(module), PyObject *array)
{
    wm_message_t message = {0};
    if (wm_py_message_parse(array, false, "obj", &message) < 0)
        return NULL;
    PyObject *number = PyLong_FromSize_t(message.buffer.nbytes);
    wm_py_message_release(&message);
    return number;
}

PyDoc_STRVAR(embedded_send_doc,
             "_embedded_send(comm, array, dest, number, /)\n--\n\n"
             "Begin to send an embedded array in place; return a wm.Request.\n"
             "The receiver is told of errors.");

static PyObject *
embedded_send(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *array;
    wm_channel_t channel;
    wm_message_t message = {0};
    wm_error_t err;
    wm_op_t *op;
    wm_envelope_t envelope = {.stream_device = -1};
    int code;
    if (!PyArg_ParseTuple(args, "OOii:_embedded_send", &object, &array,
                          &envelope.rank, &envelope.tag)
        || wm_py_channel_get(object, &channel) < 0)
        return NULL;
    wm_comm_t *comm = channel.comm->object_comm;
    if (wm_py_message_parse(array, false, "obj", &message) < 0) {
        wm_py_send_failure(comm, &envelope);
        return NULL;
    }
    wm_buffer_t buffer = wm_py_message_detach(&message);
    WM_PY_UNLOCKED(code = wm_send_begin(comm, &buffer, &envelope, &op, &err));
    if (code == 0)
        return wm_py_request_new(op, MPI_REQUEST_NULL, &message);
    wm_py_message_release(&message);
    wm_py_raise(&err);
    wm_py_send_failure(comm, &envelope);
    return NULL;
}

PyDoc_STRVAR(
    embedded_receive_doc,
    "_embedded_receive(where, array, number, source=-1, /)\n--\n\n"
    "Begin to receive an embedded array into an array; None: throw it\n"
    "away. where: the payload of the object, or a communicator, and the\n"
    "rank it comes from.");

static PyObject *
embedded_receive(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *where, *array;
    wm_channel_t channel;
    wm_message_t message = {0};
    wm_error_t err;
    wm_op_t *op;
    int number, source = -1, code;
    if (!PyArg_ParseTuple(args, "OOi|i:_embedded_receive", &where, &array,
                          &number, &source))
        return NULL;
    if (source < 0) {
        wm_op_t *of = wm_py_payload_op(where);
        if (of == NULL)
            return NULL;
        channel.comm = of->comm;
        source = of->result.source;
    }
    else if (wm_py_channel_get(where, &channel) < 0)
        return NULL;
    wm_buffer_t buffer = {.memory = {.device = -1}};
    wm_envelope_t envelope = {
        .rank = source,
        .tag = number,
        .stream_device = -1,
    };
    if (array != Py_None) {
        if (wm_py_message_parse(array, true, "obj", &message) < 0)
            return NULL;
        buffer = wm_py_message_detach(&message);
    }
    WM_PY_UNLOCKED(code = wm_receive_begin(channel.comm->object_comm, &buffer,
                                           &envelope, &op, &err));
    if (code < 0) {
        wm_py_message_release(&message);
        return wm_py_raise(&err);
    }
    if (array != Py_None)
        return wm_py_request_new(op, MPI_REQUEST_NULL, &message);
    wm_op_release(op); // the operation completes by itself
    wm_engine_notify();
    return Py_NewRef(Py_None);
}

// Returns a static copy of the call's name.
static const char *
name_of(const char *name)
{
    static const char *const names[] = {"bcast", "gather", "scatter",
                                        "allgather", "alltoall"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(name, names[i]) == 0)
            return names[i];
    return "recv";
}

PyDoc_STRVAR(
    embedded_wait_doc,
    "_embedded_wait(request, name, /)\n--\n\n"
    "Wait until an embedded array has been sent or received, in the\n"
    "call of that name. Interrupts do not end the wait, as the object\n"
    "would be lost.");

static PyObject *
embedded_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    wm_error_t err;
    const char *name;
    int code;
    if (!PyArg_ParseTuple(args, "O!s:_embedded_wait",
                          wm_py_state->request_type, &object, &name))
        return NULL;
    wm_request_t *request = (wm_request_t *)object;
    wm_op_t *op = request->op;
    if (op == NULL)
        return Py_NewRef(Py_None);
    wm_op_retain(op);
    wm_hang_call(name_of(name), false);
    WM_PY_UNLOCKED(code = wm_op_wait(op, NULL, &err));
    code = wm_py_waited(code, &err);
    wm_op_release(op);
    wm_py_request_retire(request);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef wm_py_parts_functions[] = {
    {"_embedded_bytes", bytes, METH_O, bytes_doc},
    {"_embedded_send", embedded_send, METH_VARARGS, embedded_send_doc},
    {"_embedded_receive", embedded_receive, METH_VARARGS,
     embedded_receive_doc},
    {"_embedded_wait", embedded_wait, METH_VARARGS, embedded_wait_doc},
    {0},
};
