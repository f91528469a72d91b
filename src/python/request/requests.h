// SPDX-License-Identifier: BSD-3-Clause
// The calls that wait for, or test, several requests, ours and MPI's in any
// mix: class methods of wm.Request, and, after install(), of MPI.Request. GIL
// held; released while waiting.
#ifndef WM_PYTHON_REQUEST_REQUESTS_H
#define WM_PYTHON_REQUEST_REQUESTS_H

#include "python/core/module.h"

#define WM_REQUESTS(X)                                                        \
    X("Waitall", waitall)                                                     \
    X("Waitany", waitany)                                                     \
    X("Waitsome", waitsome)                                                   \
    X("Testall", testall)                                                     \
    X("Testany", testany)                                                     \
    X("Testsome", testsome)                                                   \
    X("Get_status_all", get_status_all)                                       \
    X("Get_status_any", get_status_any)                                       \
    X("Get_status_some", get_status_some)

#define X(name, function)                                                     \
    extern const char wm_py_requests_##function##_doc[];                      \
    PyObject *wm_py_requests_##function(PyObject *type, PyObject *args,       \
                                        PyObject *kwargs);
WM_REQUESTS(X)
#undef X

// A row of the table of methods.
#define WM_REQUESTS_ROW(name, function)                                       \
    WM_PY_ROW(name, wm_py_requests_##function,                                \
              METH_VARARGS | METH_KEYWORDS | METH_CLASS),

// Returns the given requests as a tuple; NULL with an exception.
PyObject *
wm_py_requests_tuple(PyObject *requests);

// Calls mpi4py's lower-case call of that name on a tuple of requests; its
// result has None for our objects. waitany and waitsome may return what
// testany and testsome would.
PyObject *
wm_py_requests_objects(const char *name, PyObject *list, PyObject *other);

#endif
