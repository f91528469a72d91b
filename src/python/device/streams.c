// SPDX-License-Identifier: BSD-3-Clause
// Which stream is meant: anyone's stream objects and handles.
#include "python/device/py_device.h"
#include "python/device/py_stream.h"

// A default stream's handle says no device: that of the object, else of the
// CUDA context current on this thread, else our own current one.
static int
device_of_default_stream(int told, int *device)
{
    int found = told >= 0 ? told : wm_device_current();
    if (found < 0) {
        return wm_py_cuda_device(NULL, "a stream", device);
    }
    *device = found;
    return 0;
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
    int ordinal;
    PyObject *number; // borrowed
    PyObject *found = wm_py_cold("warpmpi._foreign", "stream_of", "(Os)",
                                 object, argument);
    if (found == NULL || !PyArg_ParseTuple(found, "Oi", &number, &ordinal)) {
        Py_XDECREF(found);
        return -1;
    }
    CUstream handle = PyLong_AsVoidPtr(number);
    Py_DECREF(found);
    if (handle == NULL && PyErr_Occurred()) {
        return -1;
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY
        || handle == CU_STREAM_PER_THREAD) {
        if (device_of_default_stream(ordinal, &ordinal) < 0) {
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
