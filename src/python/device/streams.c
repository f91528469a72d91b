// SPDX-License-Identifier: BSD-3-Clause
// Which stream is meant: anyone's stream objects and handles.
#include "python/device/py_device.h"
#include "python/device/py_stream.h"

// An attribute, or NULL without an exception where there is none.
static PyObject *
optional_attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return value;
}

// An int, or something like ctypes.c_void_p that has one as its value. 1, 0
// where it is neither, -1 with an exception.
static int
handle_from_number(PyObject *object, CUstream *stream)
{
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        void *handle = PyLong_AsVoidPtr(object);
        if (handle == NULL && PyErr_Occurred()) {
            return -1;
        }
        *stream = handle;
        return 1;
    }
    PyObject *value = optional_attribute(object, "value");
    if (value == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int found = 0;
    if (value == Py_None) {
        *stream = NULL; // ctypes' null pointer
        found = 1;
    }
    else if (PyLong_Check(value) && !PyBool_Check(value)) {
        *stream = PyLong_AsVoidPtr(value);
        found = *stream == NULL && PyErr_Occurred() ? -1 : 1;
    }
    Py_DECREF(value);
    return found;
}

// What __cuda_stream__() of the protocol, or the attribute of its name in
// older versions of it, holds: (version, handle).
static int
handle_from_protocol(PyObject *method, CUstream *stream)
{
    PyObject *pair = PyCallable_Check(method) ? PyObject_CallNoArgs(method)
                                              : Py_NewRef(method);
    if (pair == NULL) {
        return -1;
    }
    int found = -1;
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "__cuda_stream__ did not return (version, handle)");
    }
    else {
        found = handle_from_number(PyTuple_GET_ITEM(pair, 1), stream);
        if (found == 0) {
            PyErr_SetString(PyExc_TypeError,
                            "__cuda_stream__ returned no integer handle");
            found = -1;
        }
    }
    Py_DECREF(pair);
    return found;
}

// 1 with the handle of a foreign stream, 0 where it is none, -1.
static int
handle_from_object(PyObject *object, CUstream *stream)
{
    // Torch's and Warp's name, CuPy's, Numba's.
    static const char *const names[] = {"cuda_stream", "ptr", "handle"};
    if (PyLong_Check(object)) {
        return handle_from_number(object, stream);
    }
    PyObject *value = optional_attribute(object, "__cuda_stream__");
    int found = 0;
    if (value != NULL) {
        found = handle_from_protocol(value, stream);
        Py_DECREF(value);
        return found;
    }
    for (int i = 0; i < 3 && found == 0 && !PyErr_Occurred(); i++) {
        value = optional_attribute(object, names[i]);
        if (value == Py_None) {
            *stream = NULL; // Warp's default stream
            found = 1;
        }
        else if (value != NULL) {
            found = handle_from_number(value, stream);
        }
        Py_XDECREF(value);
    }
    return PyErr_Occurred() ? -1 : found;
}

// The device that an object over a default stream tells: CuPy's device_id,
// Torch's device_index, Warp's device.ordinal. -1 where none is told.
static int
device_told(PyObject *object)
{
    static const char *const names[] = {"device_id", "device_index"};
    PyObject *value = NULL;
    for (int i = 0; i < 2 && value == NULL; i++) {
        value = PyObject_GetAttrString(object, names[i]);
        PyErr_Clear();
    }
    if (value == NULL) {
        PyObject *device = PyObject_GetAttrString(object, "device");
        if (device != NULL) {
            value = PyObject_GetAttrString(device, "ordinal");
            Py_DECREF(device);
        }
        PyErr_Clear();
    }
    long ordinal = value != NULL && PyLong_Check(value) ? PyLong_AsLong(value)
                                                        : -1;
    Py_XDECREF(value);
    PyErr_Clear();
    return ordinal >= 0 && ordinal < wm_device_count() ? (int)ordinal : -1;
}

// A default stream's handle says no device: that of the object, else of the
// CUDA context current on this thread, else our own current one.
static int
device_of_default_stream(PyObject *object, int *device)
{
    int found = device_told(object);
    if (found < 0) {
        found = wm_device_current();
    }
    if (found >= 0) {
        *device = found;
        return 0;
    }
    return wm_py_cuda_device(NULL, "a stream", device);
}

int
wm_py_stream_from_object(PyObject *object, const char *argument, int *device,
                         CUstream *stream)
{
    if (Py_IS_TYPE(object, wm_py_state->stream_type)) {
        *device = wm_py_stream_device(object);
        *stream = wm_py_stream_handle(object);
        return 0;
    }
    CUstream handle = NULL;
    int ordinal;
    int found = handle_from_object(object, &handle);
    if (found < 0) {
        return -1;
    }
    if (found == 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s: a stream is a wm.Stream, an object with "
                     "__cuda_stream__, a stream of CuPy, Torch, Warp or "
                     "Numba, or a handle as an int, not %.200s",
                     argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY
        || handle == CU_STREAM_PER_THREAD) {
        if (device_of_default_stream(object, &ordinal) < 0) {
            return -1;
        }
        handle = handle != NULL ? handle : CU_STREAM_LEGACY;
    }
    else {
        wm_error_t err;
        if (wm_device_of_stream(handle, &ordinal, &err) < 0) {
            wm_error_context(&err, "%s", argument);
            wm_py_raise(&err);
            return -1;
        }
    }
    *device = ordinal;
    *stream = handle;
    return 0;
}
