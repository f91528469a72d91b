// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/reduced.h"

#include "comm/coll/call/half.h"
#include "python/message/datatype.h"
#include "python/message/owner.h"
#include "python/message/raw.h"

// Returns the array of a specification without a datatype; NULL if a datatype
// is given, or there is no array.
static PyObject *
untyped(PyObject *object)
{
    bool listed = PyList_Check(object) || PyTuple_Check(object);
    Py_ssize_t length = listed ? PySequence_Fast_GET_SIZE(object) : 0;
    for (Py_ssize_t i = 1; i < length; ++i)
        if (wm_py_mpi_names_datatype(PySequence_Fast_GET_ITEM(object, i)))
            return NULL;
    PyObject *array = wm_py_message_array(object);
    bool none = (listed && length == 0) || array == Py_None
                || wm_py_mpi_is_in_place(array) || wm_py_mpi_is_bottom(array);
    return none ? NULL : array;
}

static int
refuse(const char *argument, const char *name)
{
    return wm_py_fail(
        PyExc_TypeError,
        "%s: MPI has no reduction for %s; convert to float32 first", argument,
        name);
}

int
wm_py_reduced_refuse_bytes(PyObject *object, const char *argument)
{
    PyObject *array = untyped(object);
    wm_view_t view;
    if (array == NULL)
        return 0;
    Py_INCREF(array); // reading it may change the list
    int result = wm_py_view_parse(array, false, argument, &view);
    if (result == 0) {
        wm_dtype_t dtype = view.array.dtype;
        wm_py_view_release(&view);
        if (wm_py_datatype_of(dtype) == MPI_DATATYPE_NULL)
            result = refuse(argument, wm_dtype_info(dtype)->name);
    }
    else if (wm_py_drop_refusal() == 0) { // MPI, or mpi4py, may know more
        result = wm_py_raw_is_bytes(array);
        if (result > 0)
            result = refuse(argument, "elements of this type");
    }
    Py_DECREF(array);
    return result;
}

// Returns true if MPI is given our datatype for these elements and an
// operation. MPI may have a datatype of its own for an operation of the
// program.
static bool
is_ours(wm_dtype_t dtype, MPI_Op op)
{
    return (dtype == WM_FLOAT16 || dtype == WM_BFLOAT16)
           && (wm_half_has(op)
               || wm_py_datatype_of(dtype) == MPI_DATATYPE_NULL);
}

// Returns the type of a datatype that was given; WM_DTYPES if it is no half
// type.
static wm_dtype_t
half_named(MPI_Datatype type)
{
    bool named = type != MPI_DATATYPE_NULL
                 && type == wm_py_datatype_of(WM_FLOAT16);
    return named ? WM_FLOAT16 : WM_DTYPES;
}

static int
prepare(void)
{
    wm_error_t err;
    int code;
    WM_PY_UNLOCKED(code = wm_half_prepare(&err));
    return wm_py_result(code, &err);
}

bool
wm_py_reduced_is_bytes(const wm_message_t *message)
{
    return message->type == MPI_BYTE && message->datatype == NULL;
}

int
wm_py_reduced_name(wm_message_t *message, MPI_Op op)
{
    const wm_owner_t *owner = message->buffer.owner;
    wm_dtype_t dtype = WM_DTYPES;
    if (message->datatype != NULL)
        dtype = half_named(message->type);
    else if (owner != NULL && owner->viewed)
        dtype = owner->view.array.dtype;
    if (!is_ours(dtype, op))
        return 0;
    if (prepare() < 0)
        return -1;
    message->type = wm_half_type((wm_reduce_type_t)dtype);
    return 0;
}

// Returns the datatype, or its code, at the end of a specification; NULL if
// there is none. Borrowed.
static PyObject *
last_type(PyObject *object)
{
    if (!PyList_Check(object) && !PyTuple_Check(object))
        return NULL;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(object);
    PyObject *last = length > 1 ? PySequence_Fast_GET_ITEM(object, length - 1)
                                : NULL;
    return last != NULL && wm_py_mpi_names_datatype(last) ? last : NULL;
}

// Returns the element type of a buffer; WM_DTYPES if it is unknown or there is
// no buffer. Sets no exception.
static wm_dtype_t
dtype_of(PyObject *object, const char *argument, long long *inner)
{
    wm_dtype_t dtype = WM_DTYPES;
    PyObject *type = last_type(object), *array = untyped(object);
    MPI_Datatype handle;
    wm_view_t view;
    *inner = 1;
    if (type != NULL) {
        type = PyUnicode_Check(type) ? wm_py_mpi_datatype_from_code(type)
                                     : Py_NewRef(type);
        if (type != NULL && wm_py_mpi_datatype(type, argument, &handle) == 0)
            dtype = half_named(handle);
        Py_XDECREF(type);
    }
    else if (array != NULL) {
        Py_INCREF(array); // reading it may change the list
        if (wm_py_view_parse(array, false, argument, &view) == 0) {
            dtype = view.array.dtype;
            *inner = wm_py_view_inner(array, &view.array);
            wm_py_view_release(&view);
        }
        Py_DECREF(array);
    }
    PyErr_Clear();
    return dtype;
}

PyDoc_STRVAR(
    half_doc,
    "_half(obj, op, name, /)\n--\n\n"
    "Return the arguments for MPI for a buffer of float16 or bfloat16\n"
    "and an op: (datatype, op, number of elements that one count\n"
    "stands for).\n\n"
    "Returns None for other elements, and if MPI's own datatype\n"
    "serves an op of the program.");

static PyObject *
half(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *by;
    const char *name;
    long long inner;
    MPI_Op op;
    if (!PyArg_ParseTuple(args, "OOs:_half", &object, &by, &name)
        || wm_py_mpi_op(by, "op", &op) < 0)
        return NULL;
    wm_dtype_t dtype = dtype_of(object, name, &inner);
    if (!is_ours(dtype, op))
        Py_RETURN_NONE;
    if (prepare() < 0)
        return NULL;
    MPI_Datatype type = wm_half_type((wm_reduce_type_t)dtype);
    return Py_BuildValue("NNL", wm_py_mpi_datatype_new(type),
                         wm_py_mpi_op_new(wm_half_op(type, op)), inner);
}

PyMethodDef wm_py_reduced_functions[] = {
    {"_half", half, METH_VARARGS, half_doc},
    {0},
};
