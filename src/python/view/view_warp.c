// SPDX-License-Identifier: BSD-3-Clause
// Warp's arrays: their interface names no stream, and their elements may be
// vectors. nvidia.github.io/warp/user_guide/interoperability.html.
#include <string.h>

#include "python/view/view_parts.h"

// Finds the current stream of the array's device.
static wm_viewed_t
stream_of_warp(PyObject *object, CUstream *stream)
{
    bool known = false;
    PyObject *device = wm_py_attribute(object, wm_py_state->names.device);
    PyObject *current = device != NULL ? wm_py_attribute(
                            device, wm_py_state->names.stream)
                                       : NULL;
    PyObject *handle = current != NULL ? wm_py_attribute(
                           current, wm_py_state->names.cuda_stream)
                                       : NULL;
    if (handle == Py_None || (handle != NULL && PyLong_Check(handle))) {
        void *value = handle == Py_None ? NULL : PyLong_AsVoidPtr(handle);
        *stream = value != NULL ? value : CU_STREAM_LEGACY;
        known = true;
    }
    Py_XDECREF(handle);
    Py_XDECREF(current);
    Py_XDECREF(device);
    PyErr_Clear(); // in any case the whole device is right too
    return known ? WM_VIEW_FOUND : WM_VIEW_NONE;
}

// Returns the size of an element: Warp tells the dimensions of the array, and
// the other dimensions are inside its elements.
static int64_t
inner_of_warp(PyObject *object, const wm_array_t *array)
{
    PyObject *value = PyObject_GetAttrString(object, "ndim");
    long ndim = value != NULL ? PyLong_AsLong(value) : -1;
    Py_XDECREF(value);
    PyErr_Clear();
    int64_t inner = 1;
    for (long i = ndim >= 0 ? ndim : array->ndim; i < array->ndim; i++)
        inner *= array->shape[i];
    return inner > 0 ? inner : 1;
}

// Called with an exception set: after a TypeError, if the elements are a
// structure of Warp's, raises an error that says so, with the cure.
static void
refuse_struct(PyObject *object, const char *argument)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError))
        return;
    PyObject *error = PyErr_GetRaisedException();
    PyObject *none = wm_py_cold("warpmpi._foreign", "refuse_struct", "(Os)",
                                object, argument);
    if (none != NULL)
        PyErr_SetRaisedException(error);
    else
        Py_DECREF(error);
    Py_XDECREF(none);
}

// Parses the interface, whose version 2 names no stream, and takes the stream
// of the array's device.
static wm_viewed_t
parse_on_gpu(PyObject *object, const char *argument, wm_view_t *view)
{
    bool named;
    wm_viewed_t viewed = wm_py_view_parse_cai(object, argument, view, &named);
    if (viewed != WM_VIEW_FOUND || view->producer.kind != WM_PRODUCER_DEVICE
        || named)
        return viewed;
    CUstream stream;
    if (stream_of_warp(object, &stream) == WM_VIEW_FOUND) {
        view->producer.kind = WM_PRODUCER_STREAM;
        view->producer.stream = stream;
    }
    return WM_VIEW_FOUND;
}

static wm_viewed_t
parse_warp(PyObject *object, const void *Py_UNUSED(found), bool writable,
           const char *argument, wm_view_t *view)
{
    wm_viewed_t viewed = parse_on_gpu(object, argument, view);
    if (viewed == WM_VIEW_NONE)
        viewed = wm_py_view_parse_array_interface(object, writable, argument,
                                                  view);
    if (viewed == WM_VIEW_FAILED)
        refuse_struct(object, argument);
    return viewed;
}

static bool
claims_warp(PyTypeObject *type, const void **Py_UNUSED(found))
{
    return strcmp(type->tp_name, "array") == 0
           && wm_py_view_is_of_package(type, "warp");
}

const wm_view_library_t wm_py_view_warp = {
    .claims = claims_warp,
    .parse = parse_warp,
    .stream = stream_of_warp,
    .inner = inner_of_warp,
    .peculiar = true,
};
