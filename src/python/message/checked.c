// SPDX-License-Identifier: BSD-3-Clause
// The core of warpmpi/_checking.py: the elements of buffers.
#include "comm/coll/call/half.h"
#include "cuda/settings.h"
#include "comm/message/element.h"
#include "python/message/datatype.h"
#include "python/message/raw.h"
#include "python/message/specification.h"
#include "python/view/view.h"

PyDoc_STRVAR(check_wanted_doc, "_check_wanted()\n--\n\n"
                               "Return True if WARPMPI_CHECK is set.");

static PyObject *
check_wanted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_setting_is_on(WM_SETTING_CHECK));
}

// Returns the name of a type, or NULL, and its bytes.
static const char *
name_of(MPI_Datatype type, MPI_Count *size)
{
    int64_t number = wm_half_number(type);
    wm_reduce_type_t half;
    bool known = wm_half_is(type, &half) || wm_element_is_known(number);
    MPI_Type_size_x(type, size);
    return known ? wm_half_name(number) : NULL;
}

PyDoc_STRVAR(
    element_doc,
    "_element(datatype, /)\n--\n\n"
    "What a datatype is made of: the name of its element type and its\n"
    "bytes. (None, 0) where it has several, None where it is none of\n"
    "MPI's own.");

static PyObject *
element(PyObject *Py_UNUSED(module), PyObject *object)
{
    MPI_Datatype type;
    MPI_Count size = 0;
    wm_reduce_type_t half;
    if (wm_py_mpi_datatype(object, "datatype", &type) < 0)
        return NULL;
    if (type != MPI_DATATYPE_NULL && !wm_half_is(type, &half))
        type = wm_py_datatype_element(type);
    const char *name = type != MPI_DATATYPE_NULL ? name_of(type, &size) : NULL;
    return Py_BuildValue("zL", name, (long long)size);
}

PyDoc_STRVAR(
    elements_doc,
    "_elements(array, /)\n--\n\n"
    "The elements of an array: the name of their type, or None, the bytes\n"
    "of each and of all. Raises TypeError.");

static PyObject *
elements(PyObject *Py_UNUSED(module), PyObject *array)
{
    wm_view_t view;
    Py_buffer raw;
    PyObject *found, *told = NULL;
    MPI_Datatype type = MPI_BYTE;
    MPI_Count size = 0;
    if (wm_py_view_parse(array, false, "array", &view) == 0) {
        const wm_dtype_info_t *info = wm_dtype_info(view.array.dtype);
        told = Py_BuildValue("sin", info->name, (int)info->itemsize,
                             (Py_ssize_t)wm_array_nbytes(&view.array));
        wm_py_view_release(&view);
        return told;
    }
    PyErr_Clear();
    if (wm_py_raw_read(array, NULL, false, &raw, &found) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "array: not understood");
        return NULL;
    }
    if (found == NULL || wm_py_mpi_datatype(found, "array", &type) == 0) {
        const char *name = name_of(type, &size);
        told = Py_BuildValue("zLn", name, (long long)size, raw.len);
    }
    Py_XDECREF(found);
    PyBuffer_Release(&raw);
    return told;
}

PyDoc_STRVAR(
    check_datatype_doc,
    "_check_datatype(datatype, name, /)\n--\n\n"
    "Raise MPI.Exception, naming an argument, for a datatype that is\n"
    "null or not committed.");

static PyObject *
check_datatype(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    const char *name;
    MPI_Datatype type;
    wm_extent_t of;
    if (!PyArg_ParseTuple(args, "Os:_check_datatype", &object, &name)
        || wm_py_mpi_datatype(object, name, &type) < 0)
        return NULL;
    int code = type != MPI_DATATYPE_NULL
                   ? wm_py_datatype_measure(type, name, &of)
                   : wm_py_mpi_fail(MPI_ERR_TYPE,
                                    "%s: MPI.DATATYPE_NULL is no datatype",
                                    name);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef wm_py_checked_functions[] = {
    {"_check_datatype", check_datatype, METH_VARARGS, check_datatype_doc},
    {"_check_wanted", check_wanted, METH_NOARGS, check_wanted_doc},
    {"_element", element, METH_O, element_doc},
    {"_elements", elements, METH_O, elements_doc},
    {0},
};
