// SPDX-License-Identifier: BSD-3-Clause
#include "python/view/py_dtype.h"

#include <string.h>

// Returns numpy.dtype, borrowed; NULL with an exception.
static PyObject *
numpy_dtype(void)
{
    wm_state_t *state = wm_py_state;
    if (state->numpy_dtype == NULL) {
        PyObject *module = PyImport_ImportModule("numpy");
        if (module == NULL)
            return NULL;
        state->numpy_dtype = PyObject_GetAttrString(module, "dtype");
        Py_DECREF(module);
    }
    return state->numpy_dtype;
}

static PyObject *
of_ml_dtypes(const char *name)
{
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    if (module == NULL) {
        if (PyErr_ExceptionMatches(PyExc_ImportError)) {
            PyErr_Format(PyExc_TypeError,
                         "dtype: NumPy has %s only with the package "
                         "ml_dtypes: install ml_dtypes, or use the array in "
                         "CuPy, PyTorch, JAX or Warp; messages need neither",
                         name);
        }
        return NULL;
    }
    PyObject *scalar = PyObject_GetAttrString(module, name);
    Py_DECREF(module);
    return scalar;
}

PyObject *
wm_py_dtype(wm_dtype_t dtype)
{
    if (wm_py_state->dtypes[dtype] != NULL)
        return Py_NewRef(wm_py_state->dtypes[dtype]);
    const wm_dtype_info_t *info = wm_dtype_info(dtype);
    PyObject *type = NULL, *what = NULL, *made = NULL;
    what = info->typestr != NULL ? PyUnicode_FromString(info->typestr)
                                 : of_ml_dtypes(info->name);
    type = what != NULL ? numpy_dtype() : NULL; // borrowed
    made = type != NULL ? PyObject_CallOneArg(type, what) : NULL;
    Py_XDECREF(what);
    wm_py_state->dtypes[dtype] = Py_XNewRef(made);
    return made;
}

static int
dtype_of_name(const char *name, wm_dtype_t *dtype)
{
    for (int i = 0; i < WM_DTYPES; i++) {
        if (strcmp(wm_dtype_info((wm_dtype_t)i)->name, name) == 0) {
            *dtype = (wm_dtype_t)i;
            return 0;
        }
    }
    return -1;
}

bool
wm_py_dtype_of_ml_name(PyObject *name, wm_dtype_t *dtype)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    wm_dtype_t found;
    if (text == NULL || dtype_of_name(text, &found) < 0
        || wm_dtype_info(found)->typestr != NULL)
        return false;
    *dtype = found;
    return true;
}

// Finds a type by the last word of an object's name: warp.float32,
// torch.bfloat16, "int8".
static int
dtype_of_object_name(PyObject *object, wm_dtype_t *dtype)
{
    PyObject *name = NULL;
    int status = -1;
    if (PyUnicode_Check(object)) {
        name = Py_NewRef(object);
    }
    else {
        name = PyObject_GetAttrString(object, "__name__");
        if (name == NULL) {
            PyErr_Clear();
            name = PyObject_Str(object);
        }
    }
    const char *text = name != NULL && PyUnicode_Check(name)
                           ? PyUnicode_AsUTF8(name)
                           : NULL;
    if (text != NULL) {
        const char *dot = strrchr(text, '.');
        status = dtype_of_name(dot != NULL ? dot + 1 : text, dtype);
    }
    PyErr_Clear();
    Py_XDECREF(name);
    return status;
}

static int
dtype_of_numpy(PyObject *numpy_dtype, wm_dtype_t *dtype, wm_error_t *err)
{
    int status = -1;
    PyObject *name = PyObject_GetAttrString(numpy_dtype, "name");
    PyObject *str = PyObject_GetAttrString(numpy_dtype, "str");
    const char *text = name != NULL && str != NULL ? PyUnicode_AsUTF8(str)
                                                   : NULL;
    if (text == NULL)
        status = wm_error_set(err, WM_ERR_PYTHON, 0, "a Python exception");
    else if (wm_py_dtype_of_ml_name(name, dtype))
        status = 0;
    else
        status = wm_dtype_from_typestr(text, dtype, err);
    Py_XDECREF(name);
    Py_XDECREF(str);
    return status;
}

int
wm_py_dtype_from_object(PyObject *object, wm_dtype_t *dtype)
{
    for (int i = 0; i < WM_DTYPES; i++) {
        if (object == wm_py_state->dtypes[i]) {
            *dtype = (wm_dtype_t)i;
            return 0;
        }
    }
    if (PyUnicode_Check(object) && dtype_of_object_name(object, dtype) == 0)
        return 0;
    PyObject *type = numpy_dtype(); // borrowed
    if (type == NULL)
        return -1;
    wm_error_t err = {.code = 0};
    PyObject *made = PyObject_CallOneArg(type, object);
    if (made != NULL) {
        int status = dtype_of_numpy(made, dtype, &err);
        Py_DECREF(made);
        if (status == 0) {
            Py_XDECREF(wm_py_dtype(*dtype)); // found at once next time
            PyErr_Clear();
            return 0;
        }
    }
    else if (!PyErr_ExceptionMatches(PyExc_TypeError)
             && !PyErr_ExceptionMatches(PyExc_ValueError)
             && !PyErr_ExceptionMatches(PyExc_SyntaxError))
        return -1; // NumPy raises the latter two for some texts
    // An unknown object is numpy.dtype("O"), or a TypeError.
    PyErr_Clear();
    if (dtype_of_object_name(object, dtype) == 0)
        return 0;
    if (err.code != 0 && err.code != WM_ERR_PYTHON) {
        wm_error_context(&err, "dtype");
        wm_py_raise(&err);
    }
    else {
        PyErr_Format(PyExc_TypeError,
                     "dtype: %R is not an element type: use a NumPy dtype or "
                     "a name such as \"float32\" or \"bfloat16\"%s",
                     object,
                     PyLong_Check(object)
                         ? "; a shape of several extents is one tuple"
                         : "");
    }
    return -1;
}
