// SPDX-License-Identifier: BSD-3-Clause
// The dictionaries __cuda_array_interface__ (versions 0 to 3) and
// __array_interface__: numba.readthedocs.io/en/stable/cuda/
// cuda_array_interface.html and numpy.org/doc/stable/reference/
// arrays.interface.html.
#include "python/view/view_parts.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

// Returns an entry of the dictionary, borrowed; NULL if it is missing or None.
// An exception is set only if hashing failed, which strings cannot.
static PyObject *
entry(PyObject *dict, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(dict, name); // borrowed
    return value == Py_None ? NULL : value;
}

static int
missing(const char *argument, const char *key)
{
    if (PyErr_Occurred())
        return -1;
    return wm_py_view_fail(PyExc_ValueError, argument,
                           "its array interface has no \"%s\"", key);
}

static int
read_typestr(PyObject *dict, const char *argument, wm_array_t *array)
{
    wm_error_t err;
    PyObject *value = entry(dict, wm_py_state->names.typestr); // borrowed
    if (value == NULL)
        return missing(argument, "typestr");
    const char *text = NULL;
    if (PyUnicode_Check(value)) {
        text = PyUnicode_AsUTF8(value);
        PyErr_Clear();
    }
    if (text == NULL)
        return wm_py_view_fail(
            PyExc_TypeError, argument,
            "the typestr of its array interface is not a string");
    if (wm_dtype_from_typestr(text, &array->dtype, &err) < 0)
        return wm_py_raise_of(argument, &err);
    return 0;
}

// Reads (address, read-only); None is a null address.
static int
read_data(PyObject *dict, const char *argument, wm_array_t *array)
{
    PyObject *value = entry(dict, wm_py_state->names.data); // borrowed
    if (value == NULL)
        return missing(argument, "data");
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2)
        return wm_py_view_fail(PyExc_TypeError, argument,
                               "the data of its array interface is not "
                               "(address, read-only)");
    Py_INCREF(value); // code of its items may change the dictionary
    PyObject *address = PyTuple_GET_ITEM(value, 0); // borrowed
    int readonly = PyObject_IsTrue(PyTuple_GET_ITEM(value, 1));
    unsigned long long number = 0;
    if (readonly >= 0 && address != Py_None) {
        PyObject *index = PyNumber_Index(address);
        number = index != NULL ? PyLong_AsUnsignedLongLong(index) : 0;
        Py_XDECREF(index);
    }
    Py_DECREF(value);
    if (readonly < 0)
        return -1;
    if (PyErr_Occurred())
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "the address in its array interface is not "
                               "an int of 64 bits");
    array->data = (char *)(uintptr_t)number;
    array->readonly = readonly != 0;
    return 0;
}

static int
read_layout(PyObject *dict, const char *argument, wm_array_t *array)
{
    PyObject *shape = entry(dict, wm_py_state->names.shape); // borrowed
    if (shape == NULL)
        return missing(argument, "shape");
    if (!PyTuple_Check(shape) && !PyList_Check(shape))
        return wm_py_view_fail(PyExc_TypeError, argument,
                               "its shape is not a tuple of ints");
    if (wm_py_view_set_shape(shape, argument, array) < 0)
        return -1;
    PyObject *strides = entry(dict, wm_py_state->names.strides); // borrowed
    if (wm_py_view_set_strides(strides, argument, array) < 0)
        return -1;
    if (entry(dict, wm_py_state->names.mask) != NULL)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "masked arrays are not supported: fill the "
                               "masked elements first");
    PyObject *descr = entry(dict, wm_py_state->names.descr); // borrowed
    if (descr != NULL && !PyList_Check(descr))
        return wm_py_view_fail(PyExc_TypeError, argument,
                               "the descr of its array interface is a %.200s, "
                               "not a list",
                               Py_TYPE(descr)->tp_name);
    return PyErr_Occurred() ? -1 : 0;
}

static int
read_version(PyObject *dict, const char *argument, long *version)
{
    PyObject *value = entry(dict, wm_py_state->names.version); // borrowed
    if (value == NULL)
        return missing(argument, "version");
    *version = PyLong_AsLong(value);
    if (*version < 0)
        return wm_py_view_fail(
            PyExc_ValueError, argument,
            "the version in its array interface is not a number of 0 or more");
    return 0;
}

// Returns 1 if a stream is named, 0 if not; -1 with an exception.
static int
read_stream(PyObject *dict, const char *argument, long version,
            CUstream *stream)
{
    PyObject *value = version >= 3 ? entry(dict, wm_py_state->names.stream)
                                   : NULL; // borrowed
    if (value == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *index = PyNumber_Index(value);
    unsigned long long number = index != NULL
                                    ? PyLong_AsUnsignedLongLong(index)
                                    : 0;
    Py_XDECREF(index);
    if (PyErr_Occurred() || number == 0)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "the stream in its CUDA array interface is not "
                               "None, 1 (the legacy default stream), 2 (the "
                               "per-thread one) or a handle");
    *stream = (CUstream)(uintptr_t)number;
    return 1;
}

int
wm_py_view_set_producer(wm_view_t *view, bool named, CUstream stream,
                        const char *argument)
{
    wm_producer_t *producer = &view->producer;
    // A device that reads all host memory may write it, too.
    if (view->memory.kind == WM_MEMORY_HOST
        && (!named || view->array.data == NULL || wm_device_count() == 0))
        return 0;
    int device = view->memory.device;
    if (named && !wm_stream_is_default(stream)
        && (device < 0 || wm_device_count() > 1)) {
        wm_error_t err;
        if (wm_stream_device(stream, &device, &err) < 0)
            return wm_py_raise_of(argument, &err);
    }
    if (device < 0)
        device = wm_pointer_home(view->array.data);
    if (device < 0)
        device = wm_device_current();
    device = device < 0 ? 0 : device;
    producer->kind = named ? WM_PRODUCER_STREAM : WM_PRODUCER_DEVICE;
    producer->device = device;
    producer->stream = stream;
    return 0;
}

static int
read_array(PyObject *dict, const char *argument, wm_array_t *array,
           long *version)
{
    if (!PyDict_Check(dict))
        return wm_py_view_fail(PyExc_TypeError, argument,
                               "its array interface is a %.200s, not a dict",
                               Py_TYPE(dict)->tp_name);
    if (read_typestr(dict, argument, array) < 0
        || read_data(dict, argument, array) < 0
        || read_layout(dict, argument, array) < 0
        || read_version(dict, argument, version) < 0)
        return -1;
    return 0;
}

// Returns true if the process may read a byte; asks the system, and does not
// access it.
static bool
is_readable(const char *address)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1
           || errno != EFAULT;
}

// Refuses host memory that the process cannot read: it was freed, or never
// existed. Readable host memory may be exported through the CUDA interface,
// too.
static int
check_known(const wm_view_t *view, const char *argument)
{
    char *low;
    size_t length;
    if (view->memory.kind != WM_MEMORY_HOST
        || wm_array_nbytes(&view->array) == 0)
        return 0;
    wm_array_extent(&view->array, &low, &length);
    if (is_readable(low) && is_readable(low + length - 1))
        return 0;
    return wm_py_view_fail(wm_py_state->cuda_error, argument,
                           "its CUDA array interface names memory at %p that "
                           "CUDA does not know: was it freed?",
                           view->array.data);
}

wm_viewed_t
wm_py_view_parse_cai(PyObject *object, const char *argument, wm_view_t *view,
                     bool *stream_named)
{
    CUstream stream = NULL;
    long version;
    wm_viewed_t viewed = WM_VIEW_FAILED;
    PyObject *dict = wm_py_attribute(object,
                                     wm_py_state->names.cuda_array_interface);
    if (dict == NULL)
        return PyErr_Occurred() ? WM_VIEW_FAILED : WM_VIEW_NONE;
    if (read_array(dict, argument, &view->array, &version) < 0
        || wm_py_view_set_memory(view, argument) < 0)
        goto done;
    int named = read_stream(dict, argument, version, &stream);
    if (named < 0 || check_known(view, argument) < 0
        || wm_py_view_set_producer(view, named, stream, argument) < 0)
        goto done;
    *stream_named = named;
    wm_py_view_own_object(view, object);
    viewed = WM_VIEW_FOUND;
done:
    Py_DECREF(dict);
    return viewed;
}

int
wm_py_view_ask_producer(PyObject *object, const char *argument,
                        wm_view_t *view)
{
    CUstream stream = NULL;
    long version;
    PyObject *dict = wm_py_attribute(object,
                                     wm_py_state->names.cuda_array_interface);
    if (dict == NULL || !PyDict_Check(dict)) {
        Py_XDECREF(dict);
        return PyErr_Occurred() ? -1 : 0;
    }
    int named = read_version(dict, argument, &version) < 0
                    ? -1
                    : read_stream(dict, argument, version, &stream);
    Py_DECREF(dict);
    return named < 0 ? -1
                     : wm_py_view_set_producer(view, named, stream, argument);
}

wm_viewed_t
wm_py_view_parse_array_interface(PyObject *object, bool Py_UNUSED(writable),
                                 const char *argument, wm_view_t *view)
{
    long version;
    wm_viewed_t viewed = WM_VIEW_FAILED;
    PyObject *dict = wm_py_attribute(object,
                                     wm_py_state->names.array_interface);
    if (dict == NULL)
        return PyErr_Occurred() ? WM_VIEW_FAILED : WM_VIEW_NONE;
    // Without an address the buffer protocol applies, which was tried before.
    if (PyDict_Check(dict) && entry(dict, wm_py_state->names.data) == NULL) {
        viewed = PyErr_Occurred() ? WM_VIEW_FAILED : WM_VIEW_NONE;
    }
    else if (read_array(dict, argument, &view->array, &version) == 0
             && wm_py_view_set_memory(view, argument) == 0) {
        wm_py_view_own_object(view, object);
        viewed = WM_VIEW_FOUND;
    }
    Py_DECREF(dict);
    return viewed;
}
