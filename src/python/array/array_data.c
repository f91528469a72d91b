// SPDX-License-Identifier: BSD-3-Clause
// Whatever a user passes as data, seen as an array: array objects as they are,
// the rest by way of NumPy.
#include "python/array/py_array.h"
#include "python/view/py_dtype.h"

static PyObject *
dtype_or_none(const wm_dtype_t *dtype)
{
    return dtype != NULL ? wm_py_dtype(*dtype) : Py_NewRef(Py_None);
}

int
wm_py_array_view_host_data(PyObject *data, const wm_dtype_t *dtype,
                           const char *argument, wm_view_t *view)
{
    PyObject *wanted = dtype_or_none(dtype);
    PyObject *array = wanted == NULL
                          ? NULL
                          : wm_py_cold("warpmpi._host_data", "host_array",
                                       "(OOs)", data, wanted, argument);
    int status = array != NULL ? wm_py_view_parse(array, false, argument, view)
                               : -1;
    Py_XDECREF(wanted);
    Py_XDECREF(array);
    return status;
}

// Whether the object is data itself rather than an array.
static bool
is_plain(PyObject *data)
{
    return PyList_Check(data) || PyTuple_Check(data) || PyFloat_Check(data)
           || PyLong_Check(data) || PyComplex_Check(data);
}

// After a TypeError: what is left to NumPy. Where that fails, too, the first
// exception stays.
static int
view_by_numpy(PyObject *data, const wm_dtype_t *dtype, const char *argument,
              wm_view_t *view)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *wanted = dtype_or_none(dtype);
    PyObject *array = wanted == NULL
                          ? NULL
                          : wm_py_cold("warpmpi._host_data", "native_array",
                                       "(OO)", data, wanted);
    int status = array != NULL && array != Py_None
                     ? wm_py_view_parse(array, false, argument, view)
                     : -1;
    Py_XDECREF(wanted);
    Py_XDECREF(array);
    if (status < 0) {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return 0;
}

int
wm_py_array_view_data(PyObject *data, const wm_dtype_t *dtype,
                      const char *argument, wm_view_t *view)
{
    if (is_plain(data))
        return wm_py_array_view_host_data(data, dtype, argument, view);
    if (wm_py_view_parse(data, false, argument, view) < 0) {
        return PyErr_ExceptionMatches(PyExc_TypeError)
                   ? view_by_numpy(data, dtype, argument, view)
                   : -1;
    }
    if (dtype == NULL || view->array.dtype == *dtype)
        return 0;
    wm_dtype_t given = view->array.dtype;
    bool host = view->memory.device < 0;
    wm_py_view_release(view);
    if (!host) {
        PyErr_Format(PyExc_TypeError,
                     "%s: elements of %s, not %s: convert it on its device "
                     "first",
                     argument, wm_dtype_info(given)->name,
                     wm_dtype_info(*dtype)->name);
        return -1;
    }
    return wm_py_array_view_host_data(data, dtype, argument, view);
}
