// SPDX-License-Identifier: BSD-3-Clause
// The protocols a foreign array may speak, one parser each; view.c chooses.
// A parser returns 1 and has filled the view, returns 0 without an exception
// where the object does not speak the protocol, or -1 with an exception that
// names `argument`. GIL held.
#ifndef WM_PYTHON_VIEW_VIEW_PARTS_H
#define WM_PYTHON_VIEW_VIEW_PARTS_H

#include "python/view/dlpack.h"
#include "python/view/view.h"

// __cuda_array_interface__. `stream_named` tells whether the producer named
// a stream; where it did not, the view's producer is the whole device.
int
wm_py_view_parse_cai(PyObject *object, const char *argument, wm_view_t *view,
                     bool *stream_named);

// CuPy's arrays, by their attributes: half the time of their interface.
int
wm_py_view_parse_cupy(PyObject *object, const char *argument, wm_view_t *view);

// Warp's arrays: their interface, which names no stream, and their device,
// which does.
int
wm_py_view_parse_warp(PyObject *object, const char *argument, wm_view_t *view);

// The stream both use now; 1, 0 where it cannot be read, or -1.
int
wm_py_view_stream_cupy(CUstream *stream);
int
wm_py_view_stream_warp(PyObject *object, CUstream *stream);

// How many dimensions Warp itself says that its array has, whose elements
// may have some more.
int
wm_py_view_ndim_warp(PyObject *object, const wm_array_t *array);

// Where a TypeError is set and the elements are a structure of Warp's, it is
// told so, with the cure.
void
wm_py_view_refuse_struct(PyObject *object, const char *argument);

// __array_interface__: host memory.
int
wm_py_view_parse_array_interface(PyObject *object, const char *argument,
                                 wm_view_t *view);

// __dlpack__, with the stream handshake on a GPU.
int
wm_py_view_parse_dlpack(PyObject *object, const char *argument,
                        wm_view_t *view);

// The table of a type that offers one we can use, else NULL; no exception.
const wm_dl_exchange_t *
wm_py_dl_exchange_of(PyTypeObject *type);

int
wm_py_view_parse_exchange(PyObject *object, const wm_dl_exchange_t *api,
                          const char *argument, wm_view_t *view);

// The buffer protocol.
int
wm_py_view_parse_buffer(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view);

// Likewise of an owner that is a Py_buffer, else NULL: whose it is (borrowed).
PyObject *
wm_py_view_buffer_object(void (*release)(void *owner), void *owner);

// NumPy's arrays, and those of types derived from them.
int
wm_py_view_parse_numpy(PyObject *object, bool writable, const char *argument,
                       wm_view_t *view);

// Whether the type is NumPy's own ndarray, or derives from it, and not just
// called so; no exception.
bool
wm_py_view_is_numpy_type(PyTypeObject *type);

// Whether the type is numpy.ma.MaskedArray, or derives from it; no exception.
bool
wm_py_view_is_masked_type(PyTypeObject *type);

// 0, or -1 with a TypeError where the array has a mask.
int
wm_py_view_check_mask(PyObject *object, const char *argument);

// An attribute, or NULL without an exception where there is none; NULL with
// one where reading it failed otherwise.
PyObject *
wm_py_attribute(PyObject *object, PyObject *name);

// Raises `type` with "argument: text". Always -1.
int
wm_py_view_fail(PyObject *type, const char *argument, const char *format, ...);

// Raises the error with the argument's name in front. Always -1.
int
wm_py_view_raise(const char *argument, wm_error_t *err);

// Shape and strides from sequences of Python ints; the strides (bytes) may be
// NULL or None for row-major ones.
int
wm_py_view_set_shape(PyObject *shape, const char *argument, wm_array_t *array);
int
wm_py_view_set_strides(PyObject *strides, const char *argument,
                       wm_array_t *array);

// Fills array->strides row-major.
void
wm_py_view_set_contiguous(wm_array_t *array);

// The last step: data, dtype, shape and strides are set; checks that they
// make sense and asks what the memory is.
int
wm_py_view_set_memory(wm_view_t *view, const char *argument);

// Whose work the memory is ordered after: that of the stream, where one was
// named, else the whole device's. Where the memory is of no device, or there
// are several, the stream tells whose it is.
int
wm_py_view_set_producer(wm_view_t *view, bool named, CUstream stream,
                        const char *argument);

// Keeps a Python object alive through the view.
void
wm_py_view_own_object(wm_view_t *view, PyObject *object);

// Calls release(owner); an exception that is set stays so.
void
wm_py_view_release_owner(void (*release)(void *owner), void *owner);

// A release function that drops a reference to a Python object, with the GIL
// or without.
void
wm_py_release_object(void *object);

#endif
