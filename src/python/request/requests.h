// SPDX-License-Identifier: BSD-3-Clause
// The calls that wait for, or look at, several requests, ours and MPI's in any
// mix: class methods of wm.Request, and, after install(), of MPI.Request. GIL
// held; released while waiting.
#ifndef WM_PYTHON_REQUEST_REQUESTS_H
#define WM_PYTHON_REQUEST_REQUESTS_H

#include "python/core/module.h"

#define WM_REQUESTS(X)                                                        \
    X(waitall)                                                                \
    X(waitany)                                                                \
    X(waitsome)                                                               \
    X(testall)                                                                \
    X(testany)                                                                \
    X(testsome)                                                               \
    X(get_status_all)                                                         \
    X(get_status_any)                                                         \
    X(get_status_some)

#define WM_DECLARE(name)                                                      \
    extern const char wm_py_requests_##name##_doc[];                          \
    PyObject *wm_py_requests_##name(PyObject *type, PyObject *args,           \
                                    PyObject *kwargs);
WM_REQUESTS(WM_DECLARE)
#undef WM_DECLARE

// The requests that were given, as a tuple; NULL with an exception.
PyObject *
wm_py_requests_tuple(PyObject *requests);

// mpi4py's lower-case call of that name on a tuple of requests, whose result
// has None for the objects of ours. waitany and waitsome may give what testany
// and testsome do.
PyObject *
wm_py_requests_objects(const char *name, PyObject *list, PyObject *other);

#define WM_REQUESTS_METHOD(name, function)                                    \
    WM_PY_ROW(name, wm_py_requests_##function,                                \
              METH_VARARGS | METH_KEYWORDS | METH_CLASS)
#define WM_REQUESTS_METHODS                                                   \
    WM_REQUESTS_METHOD("Waitall", waitall),                                   \
        WM_REQUESTS_METHOD("Waitany", waitany),                               \
        WM_REQUESTS_METHOD("Waitsome", waitsome),                             \
        WM_REQUESTS_METHOD("Testall", testall),                               \
        WM_REQUESTS_METHOD("Testany", testany),                               \
        WM_REQUESTS_METHOD("Testsome", testsome),                             \
        WM_REQUESTS_METHOD("Get_status_all", get_status_all),                 \
        WM_REQUESTS_METHOD("Get_status_any", get_status_any),                 \
        WM_REQUESTS_METHOD("Get_status_some", get_status_some)

#endif
