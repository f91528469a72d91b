// SPDX-License-Identifier: BSD-3-Clause
// mpi4py's own objects that have the handle of one of our requests: their
// calls go to our request, and they become null when it has ended. GIL held.
#ifndef WM_PYTHON_REQUEST_STOCK_H
#define WM_PYTHON_REQUEST_STOCK_H

#include "python/core/module.h"

// Calls a method of `other`, whose handle `object` has. Takes over the
// reference of `other`.
PyObject *
wm_py_stock_forward(PyObject *object, PyObject *other, const char *name,
                    PyObject *const *args, Py_ssize_t given, PyObject *names);

// Returns a tuple of requests in which ours replace the objects that have
// their handles; those that the program started have begun. A new reference,
// or NULL with an exception.
PyObject *
wm_py_stock_resolve(PyObject *given);

// Called after a call on that tuple: updates the given objects.
void
wm_py_stock_settle(PyObject *given, PyObject *resolved);

#endif
