// SPDX-License-Identifier: BSD-3-Clause
// The method of communicators that wm.transport() calls. GIL held.
#ifndef WM_PYTHON_COMM_PY_TRANSPORT_H
#define WM_PYTHON_COMM_PY_TRANSPORT_H

#include "python/core/module.h"

extern const char wm_py_comm_transport_doc[];

// Returns (name, reason) for (rank, buffer or None), or NULL with an
// exception.
PyObject *
wm_py_comm_transport(PyObject *self, PyObject *const *args, Py_ssize_t given);

#endif
