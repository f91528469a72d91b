// SPDX-License-Identifier: BSD-3-Clause
// Shapes: of new arrays, and other ones of the same memory.
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
        || (Py_TYPE(object)->tp_iter == NULL && !PySequence_Check(object))) {
        PyErr_Format(PyExc_TypeError,
                     "%s: expected an int or a tuple of ints, not %.100s",
                     argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *fast = PySequence_Tuple(object);
    if (fast == NULL)
        return -1;
    int status = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(fast);
    if (count > WM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError,
                     "%s: %zd dimensions, at most %d are supported", argument,
                     count, WM_MAX_NDIM);
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(fast, i); // borrowed
        if (extent(item, argument, &shape[i]) < 0) {
            if (!PyIndex_Check(item)) {
                PyErr_Format(PyExc_TypeError,
                             "%s: expected ints, not %R in dimension %zd",
                             argument, item, i);
            }
            status = -1;
        }
    }
    *ndim = (int)count;
    Py_DECREF(fast);
    return status;
}

const char wm_py_array_extents_doc[] = PyDoc_STR(
    "_extents(shape, name, /)\n--\n\n"
    "An int, or a sequence of ints, as a tuple.");

PyObject *
wm_py_array_extents(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    const char *name;
    int ndim;
    int64_t extents[WM_MAX_NDIM];
    if (!PyArg_ParseTuple(args, "Os:_extents", &object, &name)
        || wm_py_array_parse_shape(object, name, &ndim, extents) < 0)
        return NULL;
    return wm_py_array_tuple(extents, ndim);
}

const char wm_py_array_view_doc[] = PyDoc_STR(
    "_view(array, shape, strides, dtype=None, /)\n--\n\n"
    "A view of an array, within whose memory it must be.");

PyObject *
wm_py_array_view(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array, *shape, *strides, *type = Py_None;
    wm_array_t view;
    int count;
    if (!PyArg_ParseTuple(args, "O!OO|O:_view", wm_py_state->array_type,
                          &array, &shape, &strides, &type))
        return NULL;
    wm_py_array_begin_view(array, &view);
    if (wm_py_array_parse_shape(shape, "shape", &view.ndim, view.shape) < 0
        || wm_py_array_parse_shape(strides, "strides", &count, view.strides)
               < 0
        || (type != Py_None
            && wm_py_dtype_from_object(type, &view.dtype) < 0)) {
        wm_array_clear(&view);
        return NULL;
    }
    return wm_py_array_view_object(array, &view);
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
