// SPDX-License-Identifier: BSD-3-Clause
// wm.StreamComm: the message calls of a communicator, ordered on one stream.
// GIL held.
#ifndef WM_PYTHON_COMM_ON_STREAM_H
#define WM_PYTHON_COMM_ON_STREAM_H

#include "python/core/module.h"

// Makes a wm.StreamComm. Returns NULL with an exception if the object is no
// stream, or is the per-thread default stream.
PyObject *
wm_py_on_stream(PyObject *comm, PyObject *stream);

#endif
