// SPDX-License-Identifier: BSD-3-Clause
// Shapes of new arrays, and new shapes of the same memory.
#include "python/array/py_array.h"
#include "python/view/py_dtype.h"

static int
extent(PyObject *object, const char *argument, int64_t *value)
{
    *value = PyNumber_AsSsize_t(object, PyExc_OverflowError);
    if (*value != -1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_OverflowError, "%s: %.50S does not fit 63 bits",
                     argument, object);
    return -1;
}

int
wm_py_array_parse_shape(PyObject *object, const char *argument, int *ndim,
                        int64_t *shape)
{
    if (PyIndex_Check(object)) {
        *ndim = 1;
        return extent(object, argument, &shape[0]);
    }
    if (PyUnicode_Check(object)
        || (Py_TYPE(object)->tp_iter == NULL && !PySequence_Check(object)))
        return wm_py_fail(PyExc_TypeError,
                          "%s: expected an int or a tuple of ints, not %.100s",
                          argument, Py_TYPE(object)->tp_name);
    PyObject *fast = PySequence_Tuple(object);
    if (fast == NULL)
        return -1;
    int status = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(fast);
    if (count > WM_MAX_NDIM)
        status = wm_py_fail(PyExc_ValueError,
                            "%s: %zd dimensions, at most %d are supported",
                            argument, count, WM_MAX_NDIM);
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(fast, i); // borrowed
        if (extent(item, argument, &shape[i]) < 0) {
            if (!PyIndex_Check(item))
                PyErr_Format(PyExc_TypeError,
                             "%s: expected ints, not %R in dimension %zd",
                             argument, item, i);
            status = -1;
        }
    }
    *ndim = (int)count;
    Py_DECREF(fast);
    return status;
}

PyDoc_STRVAR(extents_doc, "_extents(shape, name, /)\n--\n\n"
                          "Return an int, or a sequence of ints, as a tuple.");

static PyObject *
extents(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    const char *name;
    int ndim;
    int64_t shape[WM_MAX_NDIM];
    if (!PyArg_ParseTuple(args, "Os:_extents", &object, &name)
        || wm_py_array_parse_shape(object, name, &ndim, shape) < 0)
        return NULL;
    return wm_py_array_tuple(shape, ndim);
}

PyDoc_STRVAR(
    view_doc,
    "_view(array, shape, strides, dtype=None, /)\n--\n\n"
    "Return a view of an array. The view must lie within the array's\n"
    "memory.");

static PyObject *
view(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array, *shape, *strides, *type = Py_None;
    wm_array_t made;
    int count;
    if (!PyArg_ParseTuple(args, "O!OO|O:_view", wm_py_state->array_type,
                          &array, &shape, &strides, &type))
        return NULL;
    wm_py_array_begin_view(array, &made);
    if (wm_py_array_parse_shape(shape, "shape", &made.ndim, made.shape) < 0
        || wm_py_array_parse_shape(strides, "strides", &count, made.strides)
               < 0
        || (type != Py_None
            && wm_py_dtype_from_object(type, &made.dtype) < 0)) {
        wm_array_clear(&made);
        return NULL;
    }
    return wm_py_array_view_object(array, &made);
}

PyObject *
wm_py_array_transposed(PyObject *self, void *Py_UNUSED(unused))
{
    wm_array_t view;
    const wm_array_t *array = wm_py_array_of(self);
    wm_py_array_begin_view(self, &view);
    for (int i = 0; i < array->ndim; i++) {
        view.shape[i] = array->shape[array->ndim - 1 - i];
        view.strides[i] = array->strides[array->ndim - 1 - i];
    }
    return wm_py_array_view_object(self, &view);
}

PyDoc_STRVAR(dtype_name_doc,
             "_dtype_name(thing, /)\n--\n\n"
             "Return the name of an array's element type, or of a dtype.");

static PyObject *
dtype_name(PyObject *Py_UNUSED(module), PyObject *thing)
{
    wm_dtype_t dtype;
    if (Py_IS_TYPE(thing, wm_py_state->array_type))
        dtype = wm_py_array_of(thing)->dtype;
    else if (wm_py_dtype_from_object(thing, &dtype) < 0)
        return NULL;
    return PyUnicode_FromString(wm_dtype_info(dtype)->name);
}

PyMethodDef wm_py_array_functions[] = {
    {"_dtype_name", dtype_name, METH_O, dtype_name_doc},
    {"_extents", extents, METH_VARARGS, extents_doc},
    {"_view", view, METH_VARARGS, view_doc},
    {0},
};
