// SPDX-License-Identifier: BSD-3-Clause
// wm.Stream: a CUDA stream of ours, or a view of a foreign stream. GIL held.
#ifndef WM_PYTHON_DEVICE_PY_STREAM_H
#define WM_PYTHON_DEVICE_PY_STREAM_H

#include "python/core/module.h"

#include "cuda/stream.h"

// Finds a stream handle and its device from wm.Stream, an object with
// __cuda_stream__, streams of CuPy, Torch, Warp and Numba, or an int, which is
// an address: no ordinal of a device, nor CUDA's number of a default stream.
// Returns 0, or -1 with an exception naming `argument`.
int
wm_py_stream_from_object(PyObject *object, const char *argument, int *device,
                         CUstream *stream);

#endif
