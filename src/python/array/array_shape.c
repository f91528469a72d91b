// SPDX-License-Identifier: BSD-3-Clause
// Other shapes of the same memory: reshape, transpose.
#include "python/array/py_array.h"

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
    if (fast == NULL) {
        return -1;
    }
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

// Replaces a -1 and checks that the number of elements stays.
static int
complete_shape(const wm_array_t *array, int ndim, int64_t *shape)
{
    int64_t count = wm_array_count(array);
    int64_t known = 1;
    int unknown = -1;
    bool wrong = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == -1 && unknown < 0) {
            unknown = i;
            continue;
        }
        wrong |= shape[i] < 0;
        wrong |= __builtin_mul_overflow(known, shape[i], &known);
    }
    if (unknown >= 0 && !wrong && known > 0 && count % known == 0) {
        shape[unknown] = count / known;
        known = count;
    }
    else {
        wrong |= unknown >= 0;
    }
    if (!wrong && known == count) {
        return 0;
    }
    PyObject *given = wm_py_array_tuple(shape, ndim);
    if (given != NULL) {
        PyErr_Format(PyExc_ValueError, "shape: %R is not one of %lld elements",
                     given, (long long)count);
        Py_DECREF(given);
    }
    return -1;
}

// Strides for the new shape over the same memory: groups of old dimensions
// that are dense among themselves are divided anew. False where they are not.
static bool
restride(const wm_array_t *array, wm_array_t *view)
{
    int64_t shape[WM_MAX_NDIM], strides[WM_MAX_NDIM];
    int old = 0, count = 0;
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] != 1) {
            shape[count] = array->shape[i];
            strides[count++] = array->strides[i];
        }
    }
    for (int i = 0; i < view->ndim;) {
        if (view->shape[i] == 1) {
            view->strides[i++] = 0;
            continue;
        }
        int first_new = i, first_old = old;
        int64_t new_count = view->shape[i++];
        int64_t old_count = shape[old++];
        while (new_count != old_count) {
            if (new_count < old_count) {
                new_count *= view->shape[i++];
            }
            else {
                old_count *= shape[old++];
            }
        }
        for (int k = first_old; k < old - 1; k++) {
            if (strides[k] != shape[k + 1] * strides[k + 1]) {
                return false;
            }
        }
        int64_t stride = strides[old - 1];
        for (int k = i - 1; k >= first_new; k--) {
            view->strides[k] = stride;
            stride *= view->shape[k];
        }
    }
    return true;
}

static void
set_contiguous(wm_array_t *view)
{
    int64_t stride = wm_dtype_info(view->dtype)->itemsize;
    for (int i = view->ndim - 1; i >= 0; i--) {
        view->strides[i] = stride;
        stride *= view->shape[i] > 0 ? view->shape[i] : 1;
    }
}

const char wm_py_array_reshape_doc[] = PyDoc_STR(
    "reshape($self, *shape)\n"
    "--\n"
    "\n"
    "A view of the same memory in another shape (ints, or one tuple "
    "of them; one\n"
    "may be -1). Elements are taken in row-major order.\n"
    "\n"
    "Raises ValueError where the number of elements differs, or "
    "where no view\n"
    "can have that shape: use .copy().reshape(...) then.");

PyObject *
wm_py_array_reshape(PyObject *self, PyObject *args)
{
    wm_array_t view;
    const wm_array_t *array = wm_py_array_of(self);
    PyObject *shape = args;
    if (PyTuple_GET_SIZE(args) == 1) {
        shape = PyTuple_GET_ITEM(args, 0); // borrowed
    }
    wm_py_array_begin_view(self, &view);
    if (wm_py_array_parse_shape(shape, "shape", &view.ndim, view.shape) < 0
        || complete_shape(array, view.ndim, view.shape) < 0) {
        wm_array_clear(&view);
        return NULL;
    }
    if (wm_array_is_contiguous(array)) {
        set_contiguous(&view);
    }
    else if (!restride(array, &view)) {
        wm_array_clear(&view);
        PyErr_SetString(PyExc_ValueError,
                        "reshape: no view of this strided array has the new "
                        "shape: use .copy().reshape(...)");
        return NULL;
    }
    return wm_py_array_view_object(self, &view);
}

static PyObject *
permuted(PyObject *self, const int64_t *axes)
{
    wm_array_t view;
    const wm_array_t *array = wm_py_array_of(self);
    wm_py_array_begin_view(self, &view);
    for (int i = 0; i < array->ndim; i++) {
        int axis = axes != NULL ? (int)axes[i] : array->ndim - 1 - i;
        view.shape[i] = array->shape[axis];
        view.strides[i] = array->strides[axis];
    }
    return wm_py_array_view_object(self, &view);
}

PyObject *
wm_py_array_transposed(PyObject *self, void *unused)
{
    (void)unused;
    return permuted(self, NULL);
}

const char wm_py_array_transpose_doc[] = PyDoc_STR(
    "transpose($self, *axes)\n"
    "--\n"
    "\n"
    "A view with the dimensions in the order given (ints, or one "
    "tuple of them),\n"
    "or reversed. Raises ValueError unless each is named once.");

PyObject *
wm_py_array_transpose(PyObject *self, PyObject *args)
{
    int count;
    int64_t axes[WM_MAX_NDIM];
    uint64_t seen = 0;
    int ndim = wm_py_array_of(self)->ndim;
    PyObject *given = args;
    if (PyTuple_GET_SIZE(args) == 1) {
        given = PyTuple_GET_ITEM(args, 0); // borrowed
    }
    if (PyTuple_GET_SIZE(args) == 0 || given == Py_None) {
        return permuted(self, NULL);
    }
    if (wm_py_array_parse_shape(given, "axes", &count, axes) < 0) {
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        axes[i] += axes[i] < 0 ? ndim : 0;
        if (axes[i] >= 0 && axes[i] < ndim) {
            seen |= (uint64_t)1 << axes[i];
        }
    }
    if (count != ndim || seen != ((uint64_t)1 << ndim) - 1) {
        PyErr_Format(PyExc_ValueError,
                     "transpose: expected each of the %d axes once", ndim);
        return NULL;
    }
    return permuted(self, axes);
}
