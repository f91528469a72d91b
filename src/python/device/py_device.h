// SPDX-License-Identifier: BSD-3-Clause
// wm.Device: one immutable object for each device and one for the CPU, and the
// device current on a thread. GIL held.
#ifndef WM_PYTHON_DEVICE_PY_DEVICE_H
#define WM_PYTHON_DEVICE_PY_DEVICE_H

#include "python/core/module.h"

#include "cuda/device.h"

// Returns the wm.Device of an ordinal (-1: the CPU); a new reference, or NULL
// with an exception. The caller has checked the ordinal.
PyObject *
wm_py_device(int ordinal);

// Returns the ordinal of a wm.Device.
int
wm_py_device_ordinal(PyObject *device);

// Finds a device ordinal (-1: the CPU) from wm.Device, "cuda:1", "cuda",
// "cpu", an int, or None (the default device). Returns 0, or -1 with
// ValueError or TypeError.
int
wm_py_device_from_object(PyObject *object, int *device);

// Does the same, with ValueError for the CPU: "`what` needs a CUDA device".
int
wm_py_cuda_device(PyObject *object, const char *what, int *ordinal);

// Waits for the device without the GIL (no wait for -1). Returns 0, or -1 with
// an exception.
int
wm_py_synchronize_device(int ordinal);

// Like wm_py_result, after the host has waited for streams or an array: also
// raises failures of collectives on streams.
int
wm_py_after_wait(int code, wm_error_t *err);

#endif
