// SPDX-License-Identifier: BSD-3-Clause
// The targets of a window, for the tests of comm/rma/target.h.
#include "comm/diagnostics/wait.h"
#include "comm/rma/target.h"
#include "comm/coll/call/reducible.h"
#include "python/core/mpi4py.h"
#include "python/message/channel.h"
#include "python/request/py_request.h"

#define NAME "warpmpi._core.target"

static wm_target_t *
target_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, NAME);
}

PyDoc_STRVAR(target_expose_doc,
             "_target_expose(comm, array, at=0, /)\n--\n\n"
             "Expose an array, which the caller keeps, to the other ranks.");

static PyObject *
target_expose(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *comm, *array;
    unsigned long long at = 0;
    wm_channel_t channel;
    wm_message_t message;
    wm_target_t *target = NULL;
    wm_error_t err;
    int code;
    if (!PyArg_ParseTuple(args, "OO|K:_target_expose", &comm, &array, &at)
        || wm_py_channel_get(comm, &channel) < 0
        || wm_py_message_parse(array, true, "array", &message) < 0)
        return NULL;
    wm_target_memory_t memory = {
        .data = message.buffer.data,
        .nbytes = message.buffer.nbytes,
        .memory = message.buffer.memory,
        .at = at,
    };
    WM_PY_UNLOCKED(
        code = wm_target_expose(channel.comm, &memory, NULL, &target, &err));
    wm_py_message_release(&message);
    return code < 0 ? wm_py_raise(&err) : PyCapsule_New(target, NAME, NULL);
}

PyDoc_STRVAR(target_withdraw_doc, "_target_withdraw(target, /)\n--\n\n"
                                  "End the target; collective.");

static PyObject *
target_withdraw(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    wm_target_t *target = target_of(capsule);
    wm_error_t err;
    int code;
    if (target == NULL)
        return NULL;
    WM_PY_UNLOCKED(code = wm_target_withdraw(target, &err));
    return wm_py_none(code, &err);
}

// Reads parts: (offset, run, ((extent, stride), ...)). Returns how many; -1
// with an exception.
static Py_ssize_t
target_parts(PyObject *list, wm_strided_t **parts)
{
    Py_ssize_t count = PySequence_Size(list);
    if (count < 0)
        return -1;
    *parts = calloc((size_t)count + 1, sizeof **parts);
    for (Py_ssize_t i = 0; i < count; ++i) {
        long long offset, run;
        PyObject *dims, *item = PySequence_GetItem(list, i);
        wm_strided_t *part = &(*parts)[i];
        if (item == NULL
            || !PyArg_ParseTuple(item, "LLO", &offset, &run, &dims)) {
            Py_XDECREF(item);
            return -1;
        }
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an offset
        part->data = (char *)(intptr_t)offset;
        part->run = run;
        part->ndim = (int)PyTuple_Size(dims);
        for (int d = 0; d < part->ndim; ++d) {
            long long extent = 0, stride = 0;
            if (!PyArg_ParseTuple(PyTuple_GetItem(dims, d), "LL", &extent,
                                  &stride))
                break;
            part->shape[d] = extent;
            part->strides[d] = stride;
        }
        Py_DECREF(item);
        if (PyErr_Occurred())
            return -1;
    }
    return count;
}

// Sets the elements and the operation, by those of a buffer.
static int
target_elements(PyObject *of, const wm_message_t *message,
                wm_target_op_t *what)
{
    MPI_Op op, some[] = {MPI_SUM, MPI_BAND, MPI_MINLOC};
    wm_reduce_op_t as;
    if (wm_py_mpi_op(of, "op", &op) < 0)
        return -1;
    if (op != MPI_REPLACE && op != MPI_NO_OP)
        return wm_reducible(message->type, message->size, op, &what->type,
                            &what->op)
                   ? 0
                   : wm_py_fail(PyExc_TypeError, "op: not for these elements");
    what->op = op == MPI_REPLACE ? WM_REDUCE_REPLACE : WM_REDUCE_NO_OP;
    for (size_t i = 0; i < sizeof some / sizeof *some; ++i)
        if (wm_reducible(message->type, message->size, some[i], &what->type,
                         &as))
            return 0;
    return wm_py_fail(PyExc_TypeError, "no such elements");
}

// Parses an optional buffer. Returns NULL if there is none.
static wm_message_t *
target_buffer(PyObject *object, bool writable, const char *name,
              wm_message_t *message)
{
    if (object == Py_None
        || wm_py_message_parse(object, writable, name, message) < 0)
        return NULL;
    return message;
}

PyDoc_STRVAR(
    target_begin_doc,
    "_target_begin(target, kind, rank, at, origin, result, op, compare, \n"
    "parts, requested, nbytes, /)\n--\n\n"
    "Begin an operation; returns a request, or None.");

static PyObject *
target_begin(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *origin, *result, *reduces, *parts, *request = NULL;
    Py_buffer compare = {0};
    int kind, rank, requested, code = -1;
    unsigned long long at, nbytes = 0;
    if (!PyArg_ParseTuple(args, "OiiKOOOz*Op|K:_target_begin", &capsule, &kind,
                          &rank, &at, &origin, &result, &reduces, &compare,
                          &parts, &requested, &nbytes))
        return NULL;
    wm_target_t *target = target_of(capsule);
    wm_message_t given = {0}, taken = {0}, none;
    wm_strided_t *gaps = NULL;
    wm_op_t *op = NULL;
    wm_error_t err;
    wm_message_t *from = target_buffer(origin, false, "origin", &given);
    wm_message_t *into = PyErr_Occurred()
                             ? NULL
                             : target_buffer(result, true, "result", &taken);
    wm_target_op_t what = {
        .kind = (wm_target_kind_t)kind,
        .rank = rank,
        .at = at,
        .nbytes = nbytes > 0     ? nbytes
                  : from != NULL ? from->buffer.nbytes
                  : into != NULL ? into->buffer.nbytes
                                 : 0,
        .compare = compare.buf,
        .requested = requested,
    };
    Py_ssize_t count = PyErr_Occurred() ? -1 : target_parts(parts, &gaps);
    what.parts = gaps;
    what.count = count > 0 ? (size_t)count : 0;
    if (count >= 0 && target != NULL
        && (kind < WM_TARGET_ACCUMULATE
            || target_elements(reduces, from != NULL ? from : into, &what)
                   == 0)
        && wm_py_message_of_none(Py_None, &none) == 0) {
        wm_buffer_t sent, received;
        if (from != NULL)
            sent = wm_py_message_detach(from);
        if (into != NULL)
            received = wm_py_message_detach(into);
        WM_PY_UNLOCKED(code = wm_target_begin(target, &what,
                                              from != NULL ? &sent : NULL,
                                              into != NULL ? &received : NULL,
                                              requested ? &op : NULL, &err));
        request = code < 0 ? wm_py_raise(&err)
                  : op == NULL
                      ? Py_NewRef(Py_None)
                      : wm_py_request_new(op, MPI_REQUEST_NULL, &none);
    }
    if (from != NULL)
        wm_py_message_release(from);
    if (into != NULL)
        wm_py_message_release(into);
    PyBuffer_Release(&compare);
    free(gaps);
    return request;
}

// Returns a request of an operation of the target.
static PyObject *
target_request(int code, wm_op_t *op, const wm_error_t *err)
{
    wm_message_t none;
    if (code < 0)
        return wm_py_raise(err);
    return wm_py_message_of_none(Py_None, &none) < 0
               ? NULL
               : wm_py_request_new(op, MPI_REQUEST_NULL, &none);
}

PyDoc_STRVAR(target_flush_doc, "_target_flush(target, rank, /)\n--\n\n"
                               "Wait for the operations on a rank; -1: all.");

static PyObject *
target_flush(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    int rank, code;
    wm_op_t *op = NULL;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "Oi:_target_flush", &capsule, &rank)
        || target_of(capsule) == NULL)
        return NULL;
    WM_PY_UNLOCKED(
        code = wm_target_flush(target_of(capsule), rank, &op, &err));
    return target_request(code, op, &err);
}

PyDoc_STRVAR(target_lock_doc,
             "_target_lock(target, rank, exclusive, /)\n--\n\n"
             "Begin to lock a rank, or to unlock it (exclusive=None).");

static PyObject *
target_lock(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *exclusive;
    int rank, code;
    wm_op_t *op = NULL;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "OiO:_target_lock", &capsule, &rank,
                          &exclusive)
        || target_of(capsule) == NULL)
        return NULL;
    wm_target_t *target = target_of(capsule);
    if (exclusive == Py_None)
        code = wm_target_unlock(target, rank, &op, &err);
    else
        code = wm_target_lock(target, rank, exclusive == Py_True, &op, &err);
    return target_request(code, op, &err);
}

PyDoc_STRVAR(target_tell_doc, "_target_tell(target, rank, what, /)\n--\n\n"
                              "Tell a rank of a Post (0) or a Complete (1).");

static PyObject *
target_tell(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    int rank, what;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "Oii:_target_tell", &capsule, &rank, &what)
        || target_of(capsule) == NULL)
        return NULL;
    return wm_py_none(
        wm_target_tell(target_of(capsule), rank, (wm_target_tell_t)what, &err),
        &err);
}

PyDoc_STRVAR(target_hear_doc,
             "_target_hear(target, rank, what, /)\n--\n\n"
             "Begin to wait until a rank has told; with what it has told.");

static PyObject *
target_hear(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    int rank, what;
    wm_op_t *op = NULL;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "Oii:_target_hear", &capsule, &rank, &what)
        || target_of(capsule) == NULL)
        return NULL;
    int code = wm_target_hear(target_of(capsule), rank, (wm_target_tell_t)what,
                              &op, &err);
    return target_request(code, op, &err);
}

PyDoc_STRVAR(target_detach_doc, "_target_detach(target, at, /)\n--\n\n"
                                "Take the array at a place back.");

static PyObject *
target_detach(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    unsigned long long at;
    wm_error_t err;
    int code;
    if (!PyArg_ParseTuple(args, "OK:_target_detach", &capsule, &at)
        || target_of(capsule) == NULL)
        return NULL;
    WM_PY_UNLOCKED(code = wm_target_detach(target_of(capsule), at, &err));
    return wm_py_none(code, &err);
}

PyMethodDef wm_py_target_functions[] = {
    {"_target_expose", target_expose, METH_VARARGS, target_expose_doc},
    {"_target_withdraw", target_withdraw, METH_O, target_withdraw_doc},
    {"_target_begin", target_begin, METH_VARARGS, target_begin_doc},
    {"_target_detach", target_detach, METH_VARARGS, target_detach_doc},
    {"_target_flush", target_flush, METH_VARARGS, target_flush_doc},
    {"_target_lock", target_lock, METH_VARARGS, target_lock_doc},
    {"_target_tell", target_tell, METH_VARARGS, target_tell_doc},
    {"_target_hear", target_hear, METH_VARARGS, target_hear_doc},
    {0},
};
