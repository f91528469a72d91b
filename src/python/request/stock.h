// SPDX-License-Identifier: BSD-3-Clause
// mpi4py's own objects that have the handle of one of ours: their calls are
// that one's, and they are null when it has ended. GIL held.
#ifndef WM_PYTHON_REQUEST_STOCK_H
#define WM_PYTHON_REQUEST_STOCK_H

#include "python/core/module.h"

// Calls a method of `other`, which `object` has the handle of, with an
// argument, or none where it is NULL. Takes over the reference of `other`.
PyObject *
wm_py_stock_forward(PyObject *object, PyObject *other, const char *name,
                    PyObject *argument);

// A tuple of requests with ours in place of what has their handles; started
// ones of ours have begun. A new reference, or NULL with an exception.
PyObject *
wm_py_stock_resolve(PyObject *given);

// After a call on that: what has become of them is seen in the given ones.
void
wm_py_stock_settle(PyObject *given, PyObject *resolved);

#endif
