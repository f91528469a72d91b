// SPDX-License-Identifier: BSD-3-Clause
// MPI.Op.Reduce_local for GPU memory.
#include "comm/coll/direct/local.h"
#include "python/comm/reduced.h"
#include "python/view/view.h"

// Parses a buffer. Elements with gaps count with their whole extent.
static int
parse(PyObject *object, bool writable, const char *argument, MPI_Op op,
      wm_message_t *message)
{
    if (wm_py_message_parse_gaps(object, writable, argument, WM_GAPS_NONE,
                                 message)
        < 0)
        return -1;
    if (message->user != NULL && message->whole)
        wm_py_message_widen(message);
    if (wm_py_reduced_name(message, op) == 0
        && message->size == message->extent)
        return 0;
    wm_py_message_release(message);
    return -1;
}

// MPI, or mpi4py, reports what is wrong with an argument.
static PyObject *
leave_to_mpi(void)
{
    if (PyErr_ExceptionMatches(wm_py_state->mpi_exception))
        PyErr_Clear();
    return wm_py_drop_refusal() < 0 ? NULL : Py_NewRef(Py_False);
}

PyDoc_STRVAR(reduce_local_doc,
             "_reduce_local(op, inbuf, inoutbuf, /)\n--\n\n"
             "Reduce two buffers in the memory of one GPU into the second.\n"
             "Returns True if that was done. Else MPI must do the reduction,\n"
             "or raise the reason why not. Raises wm.CudaError.");

static PyObject *
reduce_local(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *by, *first, *second;
    wm_message_t read, into;
    wm_error_t err;
    MPI_Op op;
    int code = 1;
    if (!PyArg_ParseTuple(args, "OOO:_reduce_local", &by, &first, &second)
        || wm_py_mpi_op(by, "op", &op) < 0)
        return NULL;
    if (wm_py_view_is_plain(first, false)
        || wm_py_view_is_plain(second, false))
        Py_RETURN_FALSE;
    if (parse(first, false, "inbuf", op, &read) < 0)
        return leave_to_mpi();
    if (parse(second, true, "inoutbuf", op, &into) < 0) {
        wm_py_message_release(&read);
        return leave_to_mpi();
    }
    if (read.type == into.type && into.type != MPI_DATATYPE_NULL
        && !wm_py_reduced_is_bytes(&into))
        WM_PY_UNLOCKED(code = wm_local_reduce(&read.buffer, &into.buffer,
                                              into.type, into.size, op, &err));
    wm_py_message_release(&into);
    wm_py_message_release(&read);
    return code < 0 ? wm_py_raise(&err) : PyBool_FromLong(code == 0);
}

PyMethodDef wm_py_local_functions[] = {
    {"_reduce_local", reduce_local, METH_VARARGS, reduce_local_doc},
    {0},
};
