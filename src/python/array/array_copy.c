// SPDX-License-Identifier: BSD-3-Clause
// The methods that move data: to, numpy, copy, assign, fill_, zero_.
#include <string.h>

#include "array/copy.h"
#include "python/array/py_array.h"
#include "python/device/py_device.h"

int
wm_py_array_new_nogil(int device, bool pinned, wm_dtype_t dtype, int ndim,
                      const int64_t *shape, wm_array_t *array)
{
    int status;
    wm_error_t err;
    WM_PY_UNLOCKED(status = wm_array_new(device, pinned, dtype, ndim, shape,
                                         array, &err));
    return wm_py_result(status, &err);
}

int
wm_py_array_wait_nogil(const wm_array_t *array)
{
    bool idle = true;
    wm_error_t err;
    wm_producer_t producer;
    wm_array_producer(array, &producer);
    if (array->storage->memory.device >= 0)
        producer.kind = WM_PRODUCER_ORDER;
    int status = wm_producer_idle(&producer, true, &idle, &err);
    if (status == 0 && !idle)
        WM_PY_UNLOCKED(status = wm_producer_wait(&producer, true, &err));
    return wm_py_after_wait(status, &err);
}

// The options of every method that moves data.
typedef struct {
    bool blocking;
    int device; // of the stream; -1: no stream
    CUstream stream;
} how_t;

static const how_t complete = {.blocking = true, .device = -1};

// Parses the options. `blocking` is a bool or None: blocking, unless a stream
// is given.
static int
parse_how(PyObject *blocking, PyObject *stream, how_t *how)
{
    *how = complete;
    if (stream != NULL && stream != Py_None) {
        if (wm_py_stream_from_object(stream, "stream", &how->device,
                                     &how->stream)
            < 0)
            return -1;
        how->blocking = false;
    }
    if (blocking != NULL && blocking != Py_None) {
        int truth = PyObject_IsTrue(blocking);
        if (truth < 0)
            return -1;
        how->blocking = truth;
    }
    return 0;
}

static int
copy_nogil(const wm_array_t *dst, const wm_view_t *src, const how_t *how)
{
    int status;
    wm_error_t err;
    wm_producer_t producer;
    wm_array_producer(dst, &producer);
    WM_PY_UNLOCKED(status = wm_copy_ordered(dst, &producer, &src->array,
                                            &src->producer, how->device,
                                            how->stream, how->blocking, &err));
    const wm_storage_t *read = src->array.storage; // NULL: not our memory
    bool waited = how->blocking && read != NULL
                  && wm_memory_on_device(&read->memory);
    return waited ? wm_py_after_wait(status, &err)
                  : wm_py_result(status, &err);
}

static PyObject *
copied(const wm_view_t *view, int device, bool pinned, const how_t *how)
{
    wm_array_t made;
    const wm_array_t *array = &view->array;
    if (wm_py_array_new_nogil(device, pinned, array->dtype, array->ndim,
                              array->shape, &made)
        < 0)
        return NULL;
    if (copy_nogil(&made, view, how) < 0) {
        wm_array_clear(&made);
        return NULL;
    }
    return wm_py_array_object(&made);
}

PyObject *
wm_py_array_copy_of(const wm_view_t *view, int device, bool pinned,
                    bool blocking)
{
    how_t how = complete;
    how.blocking = blocking;
    return copied(view, device, pinned, &how);
}

static PyObject *
copied_object(PyObject *self, int device, bool pinned, const how_t *how)
{
    wm_view_t view;
    if (wm_py_view_parse(self, false, "array", &view) < 0)
        return NULL;
    PyObject *result = copied(&view, device, pinned, how);
    wm_py_view_release(&view);
    return result;
}

const char wm_py_array_to_doc[] = PyDoc_STR(
    "to($self, device, blocking=None, *, pinned=None, stream=None)\n--\n\n"
    "Return the array on another device: \"cuda:1\", \"cpu\", an ordinal,\n"
    "or a wm.Device. Returns the array itself if it is on that device\n"
    "already, else a contiguous copy. With pinned=True the copy is in\n"
    "page-locked host memory, plain without a GPU.\n\n"
    "The copy is complete when the call returns. With blocking=False,\n"
    "or on a stream, the copy may still be under way: warpmpi orders\n"
    "later operations on both arrays after the copy, but other\n"
    "libraries and other streams do not wait.\n\n"
    "Raises ValueError for an unknown device, wm.OutOfMemoryError.");

PyObject *
wm_py_array_to(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "blocking", "pinned", "stream", NULL};
    PyObject *object, *blocking = NULL, *pinning = NULL, *stream = NULL;
    how_t how;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$OO:to", names, &object,
                                     &blocking, &pinning, &stream)
        || wm_py_device_from_object(object, &device) < 0
        || parse_how(blocking, stream, &how) < 0)
        return NULL;
    const wm_pointer_t *memory = &wm_py_array_of(self)->storage->memory;
    bool is_pinned = memory->kind == WM_MEMORY_PINNED;
    int pinned = 0;
    if (pinning != NULL && pinning != Py_None) {
        pinned = PyObject_IsTrue(pinning);
        if (pinned < 0)
            return NULL;
    }
    else if (device < 0)
        pinned = is_pinned;
    if (device == memory->device && (device >= 0 || pinned == is_pinned))
        return Py_NewRef(self);
    return copied_object(self, device, pinned, &how);
}

const char wm_py_array_copy_doc[] = PyDoc_STR(
    "copy($self, blocking=None, *, stream=None)\n--\n\n"
    "Return a contiguous copy in memory of the same kind. See to()\n"
    "for blocking and stream.");

PyObject *
wm_py_array_copy(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocking", "stream", NULL};
    PyObject *blocking = NULL, *stream = NULL;
    how_t how;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:copy", names,
                                     &blocking, &stream)
        || parse_how(blocking, stream, &how) < 0)
        return NULL;
    const wm_pointer_t *memory = &wm_py_array_of(self)->storage->memory;
    return copied_object(self, memory->device,
                         memory->kind == WM_MEMORY_PINNED, &how);
}

// Gives the source the shape of `dst`: dimensions that are missing or have
// extent 1 are repeated.
static int
broadcast(wm_array_t *src, const wm_array_t *dst)
{
    int64_t shape[WM_MAX_NDIM], strides[WM_MAX_NDIM];
    int extra = src->ndim - dst->ndim;
    bool fits = true;
    for (int i = 0; i < extra; i++)
        fits &= src->shape[i] == 1; // leading ones are dropped, as in NumPy
    for (int i = 0; i < dst->ndim; i++) {
        int at = i + extra;
        bool repeat = at < 0 || (src->shape[at] == 1 && dst->shape[i] != 1);
        fits &= repeat || src->shape[at] == dst->shape[i];
        shape[i] = dst->shape[i];
        strides[i] = repeat ? 0 : src->strides[at < 0 ? 0 : at];
    }
    if (!fits) {
        PyObject *given = wm_py_array_tuple(src->shape, src->ndim);
        PyObject *wanted = wm_py_array_tuple(dst->shape, dst->ndim);
        if (given != NULL && wanted != NULL)
            PyErr_Format(PyExc_ValueError,
                         "source: shape %R cannot be broadcast to %R", given,
                         wanted);
        Py_XDECREF(given);
        Py_XDECREF(wanted);
        return -1;
    }
    memcpy(src->shape, shape, (size_t)dst->ndim * sizeof(int64_t));
    memcpy(src->strides, strides, (size_t)dst->ndim * sizeof(int64_t));
    src->ndim = dst->ndim;
    return 0;
}

static int
check_writable(const wm_array_t *array)
{
    if (array->readonly)
        return wm_py_fail(PyExc_BufferError,
                          "the array is read-only: write to a .copy() of it");
    return 0;
}

// Fills with one value in host memory, which is a kernel parameter.
static int
fill_nogil(const wm_array_t *dst, const void *value, const how_t *how)
{
    int status;
    wm_error_t err;
    int device = dst->storage->memory.device;
    if (how->stream != NULL && device >= 0 && how->device != device)
        return wm_py_fail(PyExc_ValueError,
                          "stream: the stream is on cuda:%d, and the array on "
                          "cuda:%d: use a stream of the array's GPU",
                          how->device, device);
    WM_PY_UNLOCKED(
        status = wm_fill(dst, value, how->stream, how->blocking, &err));
    return wm_py_result(status, &err);
}

static int
assign(const wm_array_t *dst, PyObject *value, const how_t *how)
{
    wm_view_t src;
    if (check_writable(dst) < 0
        || wm_py_array_view_data(value, &dst->dtype, "source", &src) < 0)
        return -1;
    int status;
    if (src.memory.device < 0 && wm_array_count(&src.array) == 1
        && src.array.ndim <= dst->ndim
        && src.producer.kind == WM_PRODUCER_NONE) {
        status = fill_nogil(dst, src.array.data, how);
    }
    else {
        status = broadcast(&src.array, dst);
        if (status == 0)
            status = copy_nogil(dst, &src, how);
    }
    wm_py_view_release(&src);
    return status;
}

int
wm_py_array_assign_object(const wm_array_t *dst, PyObject *value)
{
    return assign(dst, value, &complete);
}

const char wm_py_array_assign_doc[] = PyDoc_STR(
    "assign($self, source, blocking=None, *, stream=None)\n--\n\n"
    "Copy the source into the array. The source is any array object\n"
    "of the same element type on any device, or host data that NumPy\n"
    "can convert. It is broadcast as in NumPy. See to() for blocking\n"
    "and stream.\n\n"
    "Raises ValueError if the shapes do not fit, TypeError if the\n"
    "elements cannot be converted, BufferError if the array is\n"
    "read-only.");

PyObject *
wm_py_array_assign(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "blocking", "stream", NULL};
    PyObject *source, *blocking = NULL, *stream = NULL;
    how_t how;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:assign", names,
                                     &source, &blocking, &stream)
        || parse_how(blocking, stream, &how) < 0
        || assign(wm_py_array_of(self), source, &how) < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char wm_py_array_fill_doc[] = PyDoc_STR(
    "fill_($self, value, blocking=None, *, stream=None)\n--\n\n"
    "Set every element to the value, a scalar of the array's type.\n"
    "See to() for blocking and stream. Raises ValueError for more\n"
    "than one value, BufferError if the array is read-only.");

PyObject *
wm_py_array_fill(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"value", "blocking", "stream", NULL};
    PyObject *value, *blocking = NULL, *stream = NULL;
    const wm_array_t *array = wm_py_array_of(self);
    wm_view_t view;
    how_t how;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:fill_", names,
                                     &value, &blocking, &stream)
        || parse_how(blocking, stream, &how) < 0 || check_writable(array) < 0
        || wm_py_array_view_host_data(value, &array->dtype, "value", &view)
               < 0)
        return NULL;
    int status = -1;
    if (wm_array_count(&view.array) != 1)
        PyErr_SetString(PyExc_ValueError, "value: give one scalar");
    else
        status = fill_nogil(array, view.array.data, &how);
    wm_py_view_release(&view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char wm_py_array_zero_doc[] = PyDoc_STR(
    "zero_($self, blocking=None, *, stream=None)\n--\n\n"
    "Set every element to zero. See to() for blocking and stream.");

PyObject *
wm_py_array_zero(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocking", "stream", NULL};
    static const char zero[16];
    PyObject *blocking = NULL, *stream = NULL;
    how_t how;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:zero_", names,
                                     &blocking, &stream)
        || parse_how(blocking, stream, &how) < 0
        || check_writable(wm_py_array_of(self)) < 0
        || fill_nogil(wm_py_array_of(self), zero, &how) < 0)
        return NULL;
    Py_RETURN_NONE;
}
