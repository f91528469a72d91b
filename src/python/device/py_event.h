// SPDX-License-Identifier: BSD-3-Clause
// wm.Event: a CUDA event of ours. GIL held.
#ifndef WM_PYTHON_DEVICE_PY_EVENT_H
#define WM_PYTHON_DEVICE_PY_EVENT_H

#include "python/core/module.h"

#include "cuda/event.h"

// A new wm.Event of a CUDA device; a new reference, or NULL with an
// exception.
PyObject *
wm_py_event(int device);

// Records a wm.Event on a stream of `device`. 0, or -1 with TypeError for
// another object, ValueError where the event is another device's.
int
wm_py_event_record(PyObject *event, int device, CUstream stream);

// The handle of a wm.Event, of an event of CuPy, Torch or Warp, or an int.
// 0, or -1 with a TypeError naming `argument`.
int
wm_py_event_from_object(PyObject *object, const char *argument,
                        CUevent *event);

#endif
