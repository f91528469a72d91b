// SPDX-License-Identifier: BSD-3-Clause
// Whatever a user passes as data, seen as an array: array objects as they are,
// the rest by way of NumPy.
#include "python/array/py_array.h"
#include "python/view/py_dtype.h"

// numpy.asarray(data), or .astype() of it where that is of another type.
static PyObject *
host_array(PyObject *data, const wm_dtype_t *dtype)
{
    PyObject *function = wm_py_numpy("asarray");
    PyObject *wanted = NULL, *result = NULL;
    bool nested = PyList_Check(data) || PyTuple_Check(data)
                  || PyNumber_Check(data);
    if (function == NULL) {
        return NULL;
    }
    if (dtype != NULL) {
        wanted = wm_py_dtype(*dtype);
        if (wanted == NULL) {
            goto done;
        }
    }
    // Python numbers take the wanted type at once, so that none is rounded
    // on its way; arrays only what is safe enough for NumPy to do unasked.
    if (wanted != NULL && nested && !PyObject_HasAttrString(data, "dtype")) {
        result = PyObject_CallFunctionObjArgs(function, data, wanted, NULL);
        goto done;
    }
    PyObject *array = PyObject_CallOneArg(function, data);
    if (wanted == NULL || array == NULL) {
        result = array;
        goto done;
    }
    PyObject *method = PyObject_GetAttrString(array, "astype");
    PyObject *given = PyTuple_Pack(1, wanted);
    PyObject *options = Py_BuildValue("{s:s,s:O}", "casting", "same_kind",
                                      "copy", Py_False);
    if (method != NULL && given != NULL && options != NULL) {
        result = PyObject_Call(method, given, options);
    }
    Py_XDECREF(method);
    Py_XDECREF(given);
    Py_XDECREF(options);
    Py_DECREF(array);
done:
    Py_DECREF(function);
    Py_XDECREF(wanted);
    return result;
}

// What NumPy said of the value, with the argument's name before it; what a
// class of the user's said stays as it is.
static void
name_argument(const char *argument)
{
    PyObject *const kinds[] = {PyExc_TypeError, PyExc_ValueError,
                               PyExc_OverflowError};
    PyObject *type, *value, *trace, *named;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    for (size_t i = 0; i < 3; i++) {
        if (type != kinds[i]) {
            continue;
        }
        PyErr_Format(kinds[i], "%s: %S", argument, value);
        Py_DECREF(type);
        if (trace != NULL) {
            PyException_SetTraceback(value, trace);
            Py_DECREF(trace);
        }
        PyErr_Fetch(&type, &named, &trace);
        PyErr_NormalizeException(&type, &named, &trace);
        PyException_SetCause(named, value); // which it takes over
        PyErr_Restore(type, named, trace);
        return;
    }
    PyErr_Restore(type, value, trace);
}

int
wm_py_array_view_host_data(PyObject *data, const wm_dtype_t *dtype,
                           const char *argument, wm_view_t *view)
{
    PyObject *array = host_array(data, dtype);
    if (array == NULL) {
        name_argument(argument);
        return -1;
    }
    int status = wm_py_view_parse(array, false, argument, view);
    Py_DECREF(array);
    return status;
}

// Whether the object is data itself rather than an array.
static bool
is_plain(PyObject *data)
{
    return PyList_Check(data) || PyTuple_Check(data) || PyFloat_Check(data)
           || PyLong_Check(data) || PyComplex_Check(data);
}

// Whether NumPy may make an array of what no protocol of ours could read.
static bool
is_numpys(PyObject *data)
{
    return PyObject_HasAttrString(data, "__array__")
           || PyObject_HasAttrString(data, "dtype")
           || PyObject_CheckBuffer(data);
}

// The type of the elements in native byte order. No exception.
static bool
native_dtype(PyObject *data, wm_dtype_t *dtype)
{
    PyObject *own = PyObject_GetAttrString(data, "dtype");
    PyObject *native = own != NULL
                           ? PyObject_CallMethod(own, "newbyteorder", "s", "=")
                           : NULL;
    bool found = native != NULL && wm_py_dtype_from_object(native, dtype) == 0;
    PyErr_Clear();
    Py_XDECREF(own);
    Py_XDECREF(native);
    return found;
}

// After a TypeError: elements of another byte order, NumPy's scalars and their
// like are left to NumPy. Where that fails too, the first exception stays.
static int
view_by_numpy(PyObject *data, const wm_dtype_t *dtype, const char *argument,
              wm_view_t *view)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    wm_dtype_t native;
    bool numpys = is_numpys(data);
    if (numpys && dtype == NULL && native_dtype(data, &native)) {
        dtype = &native;
    }
    if (!numpys || dtype == NULL
        || wm_py_array_view_host_data(data, dtype, argument, view) < 0) {
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
    if (is_plain(data)) {
        return wm_py_array_view_host_data(data, dtype, argument, view);
    }
    if (wm_py_view_parse(data, false, argument, view) < 0) {
        return PyErr_ExceptionMatches(PyExc_TypeError)
                   ? view_by_numpy(data, dtype, argument, view)
                   : -1;
    }
    if (dtype == NULL || view->array.dtype == *dtype) {
        return 0;
    }
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
