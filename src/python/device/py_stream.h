// SPDX-License-Identifier: BSD-3-Clause
// wm.Stream: a CUDA stream of ours, or a view of anyone's. GIL held.
// (wm_py_stream_from_object is in view.h.)
#ifndef WM_PYTHON_DEVICE_PY_STREAM_H
#define WM_PYTHON_DEVICE_PY_STREAM_H

#include "python/core/module.h"

#include "cuda/stream.h"

// What a wm.Stream holds.
int
wm_py_stream_device(PyObject *stream);

CUstream
wm_py_stream_handle(PyObject *stream);

#endif
