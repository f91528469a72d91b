// SPDX-License-Identifier: BSD-3-Clause
// Functions that all protocols' parsers use: errors that name the argument,
// shapes and strides from Python, and checks of their values.
#include <string.h>

#include "python/view/view_parts.h"

const wm_producer_t wm_py_view_nobody = {
    .kind = WM_PRODUCER_NONE,
    .device = -1,
};

int
wm_py_drop_refusal(void)
{
    PyObject *const refusals[] = {
        PyExc_TypeError,           PyExc_ValueError,  PyExc_BufferError,
        PyExc_AttributeError,      PyExc_LookupError, PyExc_ArithmeticError,
        PyExc_NotImplementedError, PyExc_ImportError, wm_py_state->cuda_error,
        PyExc_AssertionError, // of a producer that wants another stream
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (PyErr_ExceptionMatches(refusals[i])) {
            PyErr_Clear();
            return 0;
        }
    return PyErr_Occurred() != NULL ? -1 : 0;
}

int
wm_py_view_fail(PyObject *type, const char *argument, const char *format, ...)
{
    va_list args;
    if (wm_py_drop_refusal() < 0)
        return -1;
    va_start(args, format);
    PyObject *text = PyUnicode_FromFormatV(format, args);
    va_end(args);
    if (text != NULL) {
        PyErr_Format(type, "%s: %U", argument, text);
        Py_DECREF(text);
    }
    return -1;
}

bool
wm_py_view_is_of_package(PyTypeObject *type, const char *package)
{
    bool result = false;
    PyObject *module = PyObject_GetAttrString((PyObject *)type, "__module__");
    const char *name = module != NULL && PyUnicode_Check(module)
                           ? PyUnicode_AsUTF8(module)
                           : NULL;
    if (name != NULL) {
        size_t length = strlen(package);
        result = strncmp(name, package, length) == 0
                 && (name[length] == '\0' || name[length] == '.');
    }
    PyErr_Clear();
    Py_XDECREF(module);
    return result;
}

// Fills row-major strides; an extent of 0 counts as 1.
void
wm_py_view_set_contiguous(wm_array_t *array)
{
    int64_t stride = wm_dtype_info(array->dtype)->itemsize;
    for (int i = array->ndim - 1; i >= 0; i--) {
        int64_t extent = array->shape[i] > 0 ? array->shape[i] : 1;
        array->strides[i] = stride;
        if (__builtin_mul_overflow(stride, extent, &stride))
            stride = INT64_MAX; // the check of the extent finds it
    }
}

// Reads at most WM_MAX_NDIM ints.
static int
read_ints(PyObject *sequence, const char *what, const char *argument,
          int64_t *values, int *count)
{
    PyObject *fast = PySequence_Tuple(sequence);
    if (fast == NULL)
        return wm_py_view_fail(PyExc_TypeError, argument,
                               "its %s is not a tuple of ints", what);
    int status = 0;
    Py_ssize_t n = PyTuple_GET_SIZE(fast);
    if (n > WM_MAX_NDIM)
        status = wm_py_view_fail(PyExc_ValueError, argument,
                                 "%zd dimensions: at most %d are supported", n,
                                 WM_MAX_NDIM);
    for (Py_ssize_t i = 0; status == 0 && i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(fast, i); // borrowed
        values[i] = PyLong_AsLongLong(item);
        if (values[i] == -1 && PyErr_Occurred())
            status = wm_py_view_fail(PyExc_ValueError, argument,
                                     "its %s is not made of 64-bit ints",
                                     what);
    }
    *count = (int)n;
    Py_DECREF(fast);
    return status;
}

int
wm_py_view_set_shape(PyObject *shape, const char *argument, wm_array_t *array)
{
    int ndim;
    if (read_ints(shape, "shape", argument, array->shape, &ndim) < 0)
        return -1;
    array->ndim = ndim;
    return 0;
}

int
wm_py_view_set_strides(PyObject *strides, const char *argument,
                       wm_array_t *array)
{
    int count;
    if (strides == NULL || strides == Py_None) {
        wm_py_view_set_contiguous(array);
        return 0;
    }
    if (read_ints(strides, "strides", argument, array->strides, &count) < 0)
        return -1;
    if (count != array->ndim)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "it has %d strides for %d dimensions", count,
                               array->ndim);
    return 0;
}

// Checks that extents fit in 63 bits, so that no later arithmetic overflows.
static int
check_shape(const wm_array_t *array, const char *argument, bool *empty)
{
    int64_t count = wm_dtype_info(array->dtype)->itemsize;
    int64_t reach = count;
    bool overflow = false;
    *empty = false;
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] < 0)
            return wm_py_view_fail(PyExc_ValueError, argument,
                                   "its shape has the negative extent %lld",
                                   (long long)array->shape[i]);
        *empty |= array->shape[i] == 0;
    }
    for (int i = 0; !*empty && i < array->ndim; i++) {
        int64_t step = 0;
        int64_t stride = array->strides[i];
        overflow |= stride == INT64_MIN;
        overflow |= __builtin_mul_overflow(count, array->shape[i], &count);
        overflow |= overflow
                    || __builtin_mul_overflow(stride < 0 ? -stride : stride,
                                              array->shape[i] - 1, &step);
        overflow |= __builtin_add_overflow(reach, step, &reach);
    }
    if (overflow)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "its shape and strides exceed 63 bits");
    return 0;
}

// Checks that a view is within its allocation: otherwise the error would show
// much later. The driver does not know the ranges in other allocators' pools.
static int
check_range(const wm_view_t *view, const char *argument)
{
    char *low;
    size_t length;
    const wm_pointer_t *memory = &view->memory;
    if (!memory->exportable || memory->size == 0)
        return 0;
    wm_array_extent(&view->array, &low, &length);
    uintptr_t first = (uintptr_t)low;
    if (first < memory->base || first - memory->base + length > memory->size)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "its shape and strides reach outside of its "
                               "allocation of %zu bytes",
                               memory->size);
    return 0;
}

int
wm_py_view_set_memory(wm_view_t *view, const char *argument)
{
    bool empty;
    wm_error_t err;
    wm_array_t *array = &view->array;
    array->storage = NULL;
    view->producer = wm_py_view_nobody;
    if (check_shape(array, argument, &empty) < 0)
        return -1;
    if (array->data == NULL && !empty)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "its pointer is null, but its size is not 0");
    if (wm_pointer_describe(array->data, &view->memory, &err) < 0)
        return wm_py_raise_of(argument, &err);
    if (wm_memory_on_device(&view->memory)
        && wm_py_view_set_producer(view, false, NULL, argument) < 0)
        return -1;
    return empty ? 0 : check_range(view, argument);
}
