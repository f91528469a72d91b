// SPDX-License-Identifier: BSD-3-Clause
// Data that a user passes, viewed as an array: array objects directly, other
// data through NumPy.
#include "python/array/py_array.h"
#include "python/view/py_dtype.h"

// Views the result of a function of _host_data. Returns -1 if the result is
// None, too.
static int
view_made(const char *function, PyObject *data, const wm_dtype_t *dtype,
          const char *argument, wm_view_t *view)
{
    PyObject *wanted = dtype != NULL ? wm_py_dtype(*dtype)
                                     : Py_NewRef(Py_None);
    PyObject *array = wanted == NULL
                          ? NULL
                          : wm_py_cold("warpmpi._host_data", function, "(OOs)",
                                       data, wanted, argument);
    int status = array != NULL && array != Py_None
                     ? wm_py_view_parse(array, false, argument, view)
                     : -1;
    Py_XDECREF(wanted);
    Py_XDECREF(array);
    return status;
}

int
wm_py_array_view_host_data(PyObject *data, const wm_dtype_t *dtype,
                           const char *argument, wm_view_t *view)
{
    return view_made("host_array", data, dtype, argument, view);
}

// Returns true if the object is data itself, not an array.
static bool
is_plain(PyObject *data)
{
    return PyList_Check(data) || PyTuple_Check(data) || PyFloat_Check(data)
           || PyLong_Check(data) || PyComplex_Check(data);
}

// Tries NumPy after a TypeError. If this fails, too, the first exception
// stays.
static int
view_by_numpy(PyObject *data, const wm_dtype_t *dtype, const char *argument,
              wm_view_t *view)
{
    PyObject *refusal = PyErr_GetRaisedException();
    if (view_made("native_array", data, dtype, argument, view) < 0) {
        PyErr_SetRaisedException(refusal);
        return -1;
    }
    Py_DECREF(refusal);
    return 0;
}

// NumPy reads memory at once.
static int
wait_for_producer(const wm_view_t *view)
{
    wm_error_t err;
    int code = 0;
    if (view->producer.kind != WM_PRODUCER_NONE)
        WM_PY_UNLOCKED(code = wm_producer_wait(&view->producer, false, &err));
    return wm_py_result(code, &err);
}

int
wm_py_array_view_data(PyObject *data, const wm_dtype_t *dtype,
                      const char *argument, wm_view_t *view)
{
    if (is_plain(data))
        return wm_py_array_view_host_data(data, dtype, argument, view);
    if (wm_py_view_parse(data, false, argument, view) < 0)
        return PyErr_ExceptionMatches(PyExc_TypeError)
                   ? view_by_numpy(data, dtype, argument, view)
                   : -1;
    if (dtype == NULL || view->array.dtype == *dtype)
        return 0;
    wm_dtype_t given = view->array.dtype;
    bool host = view->memory.device < 0;
    int settled = host ? wait_for_producer(view) : 0;
    wm_py_view_release(view);
    if (settled < 0)
        return -1;
    if (!host)
        return wm_py_fail(PyExc_TypeError,
                          "%s: the elements are %s, not %s: convert the array "
                          "on its device first",
                          argument, wm_dtype_info(given)->name,
                          wm_dtype_info(*dtype)->name);
    return wm_py_array_view_host_data(data, dtype, argument, view);
}
