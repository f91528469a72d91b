// SPDX-License-Identifier: BSD-3-Clause
// Functions for warpmpi/_buffered.py: the room for buffered sends, counted.
#include <stdbool.h>

#include "comm/diagnostics/hang.h"
#include "comm/message/buffered.h"
#include "python/core/mpi4py.h"
#include "python/message/channel.h"
#include "python/request/py_request.h"

// Finds the communicator of an object; NULL for None, the process.
static int
comm_of(PyObject *object, wm_comm_t **comm)
{
    wm_channel_t channel;
    *comm = NULL;
    if (wm_py_check_running() < 0)
        return -1;
    if (object == Py_None)
        return 0;
    if (wm_py_channel_get(object, &channel) < 0)
        return -1;
    *comm = channel.comm;
    return 0;
}

PyDoc_STRVAR(
    attach_doc,
    "_buffer_attach(comm, size, /)\n--\n\n"
    "Attach a number of bytes (-1: without limit) to a communicator,\n"
    "or to the process if comm is None. Raises MPI.Exception if a\n"
    "buffer is attached already.");

static PyObject *
attach(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    Py_ssize_t size;
    wm_comm_t *comm;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "On:_buffer_attach", &object, &size)
        || comm_of(object, &comm) < 0)
        return NULL;
    size_t bytes = size < 0 ? SIZE_MAX : (size_t)size;
    return wm_py_none(wm_room_attach(comm, bytes, &err), &err);
}

PyDoc_STRVAR(detach_doc, "_buffer_detach(comm, /)\n--\n\n"
                         "Detach the attached buffer. Waits for nothing.");

static PyObject *
detach(PyObject *Py_UNUSED(module), PyObject *object)
{
    wm_comm_t *comm;
    wm_error_t err;
    if (comm_of(object, &comm) < 0)
        return NULL;
    return wm_py_none(wm_room_detach(comm, &err), &err);
}

PyDoc_STRVAR(
    flush_doc,
    "_buffer_flush(comm, /)\n--\n\n"
    "Return a wm.Request that ends when no buffered message is left.");

static PyObject *
flush(PyObject *Py_UNUSED(module), PyObject *object)
{
    wm_comm_t *comm;
    wm_op_t *op;
    wm_error_t err;
    wm_message_t none = {0};
    if (comm_of(object, &comm) < 0)
        return NULL;
    int code;
    WM_PY_UNLOCKED(code = wm_room_flush_begin(comm, &op, &err));
    return code < 0 ? wm_py_raise(&err)
                    : wm_py_request_new(op, MPI_REQUEST_NULL, &none);
}

PyDoc_STRVAR(wait_doc,
             "_buffer_wait(comm, detaches, /)\n--\n\n"
             "Wait until no buffered message is left, in Detach_buffer or,\n"
             "unless detaches, in Flush_buffer.");

static PyObject *
wait_for_room(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    wm_comm_t *comm;
    wm_op_t *op;
    wm_error_t err;
    int detaches, code;
    if (!PyArg_ParseTuple(args, "Op:_buffer_wait", &object, &detaches)
        || comm_of(object, &comm) < 0)
        return NULL;
    WM_PY_UNLOCKED(code = wm_room_flush_begin(comm, &op, &err));
    if (code < 0)
        return wm_py_raise(&err);
    wm_hang_call(detaches ? "Detach_buffer" : "Flush_buffer", false);
    code = wm_py_wait(op, NULL);
    wm_op_release(op);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef wm_py_buffered_functions[] = {
    {"_buffer_attach", attach, METH_VARARGS, attach_doc},
    {"_buffer_detach", detach, METH_O, detach_doc},
    {"_buffer_flush", flush, METH_O, flush_doc},
    {"_buffer_wait", wait_for_room, METH_VARARGS, wait_doc},
    {0},
};
