// SPDX-License-Identifier: BSD-3-Clause
// wm.Stream: a CUDA stream of ours, or a view of anyone's, and which is
// current on a thread. GIL held. (wm_stream_from_object is in view.h.)
#ifndef WM_PYTHON_STREAM_H
#define WM_PYTHON_STREAM_H

#include "python/module.h"

#include "cuda/stream.h"

// A wm.Stream over a handle that somebody else owns; `owner` (or NULL) is
// kept alive by it. A new reference, or NULL with an exception.
PyObject *
wm_python_stream(int device, CUstream stream, PyObject *owner);

// What a wm.Stream holds.
int
wm_python_stream_device(PyObject *stream);

CUstream
wm_python_stream_handle(PyObject *stream);

// The stream of a CUDA device that is current on this thread, unless set the
// legacy default stream; a new reference, or NULL with an exception.
PyObject *
wm_python_current_stream(int device);

// Makes a stream object, wm.Stream or foreign, the current one of `device`
// (-1: of its own); with `sync` it waits for the previous one on the device.
// 0, or -1 with ValueError where it belongs to another device.
int
wm_python_set_current_stream(PyObject *stream, int device, bool sync);

// The package's functions on streams; called by wm_python_add_stream.
int
wm_python_add_stream_functions(PyObject *module);

#endif
