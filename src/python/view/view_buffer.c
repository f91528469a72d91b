// SPDX-License-Identifier: BSD-3-Clause
// The buffer protocol: bytes, memoryview, array, and the NumPy arrays that
// view_numpy.c passes on.
#include <string.h>

#include "python/view/py_dtype.h"
#include "python/view/view_parts.h"

// Py_buffers kept for the next views. They are taken and returned in steps
// that run no Python code, so the GIL is the lock.
#define KEPT 64

static Py_buffer *kept[KEPT];
static int kept_count;

static Py_buffer *
buffer_new(void)
{
    if (kept_count > 0)
        return kept[--kept_count];
    return PyMem_RawMalloc(sizeof(Py_buffer));
}

static void
buffer_free(Py_buffer *buffer)
{
    if (kept_count < KEPT)
        kept[kept_count++] = buffer;
    else
        PyMem_RawFree(buffer);
}

static void
release_buffer(void *owner)
{
    if (!Py_IsInitialized())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    PyBuffer_Release(owner);
    buffer_free(owner);
    PyGILState_Release(state);
}

PyObject *
wm_py_view_buffer_object(void (*release)(void *owner), void *owner)
{
    return release == release_buffer ? ((Py_buffer *)owner)->obj : NULL;
}

// Finds a type of a group (signed or unsigned integers, floats, complex) by
// its size.
static int
sized(wm_dtype_t first, Py_ssize_t itemsize, wm_dtype_t *dtype)
{
    for (wm_dtype_t d = first; d < first + 4 && d < WM_DTYPES; d++) {
        if (wm_dtype_info(d)->itemsize == itemsize) {
            *dtype = d;
            return 0;
        }
    }
    return -1;
}

// Finds the type of a letter of the struct module.
static int
dtype_of_letter(char letter, Py_ssize_t itemsize, wm_dtype_t *dtype)
{
    if (letter == '?') {
        *dtype = WM_BOOL;
        return itemsize == 1 ? 0 : -1;
    }
    if (strchr("bhilqn", letter) != NULL)
        return sized(WM_INT8, itemsize, dtype);
    if (strchr("BcHILQNP", letter) != NULL)
        return sized(WM_UINT8, itemsize, dtype);
    return strchr("efd", letter) != NULL && itemsize <= 8
               ? sized(WM_FLOAT16, itemsize, dtype)
               : -1;
}

static int
dtype_of_format(const char *format, Py_ssize_t itemsize, wm_dtype_t *dtype,
                const char *argument)
{
    const char *at = format != NULL ? format : "B";
    bool foreign = *at == '>' || *at == '!';
    if (*at == '@' || *at == '=' || *at == '<' || foreign)
        at++;
    bool complex = *at == 'Z' && (at[1] == 'f' || at[1] == 'd');
    int status = -1;
    if (complex && at[2] == '\0') {
        *dtype = itemsize == 8 ? WM_COMPLEX64 : WM_COMPLEX128;
        status = itemsize == 8 || itemsize == 16 ? 0 : -1;
    }
    else if (*at != '\0' && at[1] == '\0')
        status = dtype_of_letter(*at, itemsize, dtype);
    if (status < 0) {
        return wm_py_view_fail(
            PyExc_TypeError, argument,
            "elements of format \"%.100s\" are not supported: use bool, an "
            "integer, float16/32/64, complex64/128 or bfloat16",
            format != NULL ? format : "");
    }
    if (foreign && itemsize > 1)
        return wm_py_view_fail(
            PyExc_TypeError, argument,
            "its elements (%s) are in big-endian byte order: convert the "
            "array to native byte order first, with "
            "a.astype(a.dtype.newbyteorder(\"=\"))",
            wm_dtype_info(*dtype)->name);
    return 0;
}

// Copies the layout. Exporters may leave out what a contiguous buffer does not
// need (ctypes).
static void
take_layout(const Py_buffer *buffer, wm_array_t *array)
{
    for (int i = 0; i < buffer->ndim; i++) {
        array->shape[i] = buffer->shape != NULL
                              ? buffer->shape[i]
                              : buffer->len / buffer->itemsize;
    }
    if (buffer->strides == NULL) {
        wm_py_view_set_contiguous(array);
        return;
    }
    for (int i = 0; i < buffer->ndim; i++)
        array->strides[i] = buffer->strides[i];
}

static int
take_buffer(const Py_buffer *buffer, const char *argument, wm_view_t *view)
{
    wm_array_t *array = &view->array;
    if (buffer->ndim > WM_MAX_NDIM)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "%d dimensions: at most %d are supported",
                               buffer->ndim, WM_MAX_NDIM);
    if (dtype_of_format(buffer->format, buffer->itemsize, &array->dtype,
                        argument)
        < 0)
        return -1;
    array->data = buffer->buf;
    array->readonly = buffer->readonly != 0;
    array->ndim = buffer->ndim;
    if (buffer->shape == NULL && buffer->ndim > 1)
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "its buffer has no shape");
    take_layout(buffer, array);
    return wm_py_view_set_memory(view, argument);
}

// Returns true for an array of a type of ml_dtypes, for which the buffer
// protocol has no letter. No exception.
static bool
is_of_ml_dtypes(PyObject *object, wm_dtype_t *ours)
{
    bool result = false;
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *name = dtype != NULL ? PyObject_GetAttrString(dtype, "name")
                                   : NULL;
    if (name != NULL)
        result = wm_py_dtype_of_ml_name(name, ours);
    PyErr_Clear();
    Py_XDECREF(dtype);
    Py_XDECREF(name);
    return result;
}

static wm_viewed_t
parse_words(PyObject *object, wm_dtype_t dtype, bool writable,
            const char *argument, wm_view_t *view)
{
    const char *word = wm_dtype_info(dtype)->itemsize == 1 ? "uint8"
                                                           : "uint16";
    PyObject *words = PyObject_CallMethod(object, "view", "s", word);
    if (words == NULL)
        return WM_VIEW_FAILED;
    wm_viewed_t viewed = wm_py_view_parse_buffer(words, writable, argument,
                                                 view);
    Py_DECREF(words);
    if (viewed == WM_VIEW_FOUND)
        view->array.dtype = dtype;
    return viewed;
}

// Reports the exporter's refusal, in our words if writing was refused.
static wm_viewed_t
refused(PyObject *object, bool writable, const char *argument, wm_view_t *view)
{
    PyObject *error = PyErr_GetRaisedException();
    wm_dtype_t dtype;
    if (is_of_ml_dtypes(object, &dtype)) {
        Py_DECREF(error);
        return parse_words(object, dtype, writable, argument, view);
    }
    Py_buffer probe;
    if (writable
        && PyObject_GetBuffer(object, &probe, PyBUF_STRIDES | PyBUF_FORMAT)
               == 0) {
        PyBuffer_Release(&probe);
        Py_DECREF(error);
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "%.200s is read-only: receive into a writable "
                               "array, such as numpy.empty(shape, dtype)",
                               Py_TYPE(object)->tp_name);
    }
    PyErr_Clear();
    // NumPy raises ValueError for elements without a letter.
    wm_py_view_fail(PyErr_GivenExceptionMatches(error, PyExc_ValueError)
                        ? PyExc_TypeError
                        : (PyObject *)Py_TYPE(error),
                    argument, "%S", error);
    Py_DECREF(error);
    return WM_VIEW_FAILED;
}

wm_viewed_t
wm_py_view_parse_buffer(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view)
{
    if (!PyObject_CheckBuffer(object))
        return WM_VIEW_NONE;
    int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    Py_buffer *buffer = buffer_new();
    if (buffer == NULL) {
        PyErr_NoMemory();
        return WM_VIEW_FAILED;
    }
    if (PyObject_GetBuffer(object, buffer, flags) < 0) {
        buffer_free(buffer);
        return refused(object, writable, argument, view);
    }
    if (take_buffer(buffer, argument, view) < 0) {
        PyBuffer_Release(buffer);
        buffer_free(buffer);
        return WM_VIEW_FAILED;
    }
    view->owner = buffer;
    view->release = release_buffer;
    return WM_VIEW_FOUND;
}

static bool
claims_bytes(PyTypeObject *type, const void **Py_UNUSED(found))
{
    return type == &PyBytes_Type || type == &PyByteArray_Type
           || type == &PyMemoryView_Type;
}

static wm_viewed_t
parse_bytes(PyObject *object, const void *Py_UNUSED(found), bool writable,
            const char *argument, wm_view_t *view)
{
    return wm_py_view_parse_buffer(object, writable, argument, view);
}

const wm_view_library_t wm_py_view_bytes = {
    .claims = claims_bytes,
    .parse = parse_bytes,
};
