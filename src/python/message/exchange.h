// SPDX-License-Identifier: BSD-3-Clause
// The calls that send and receive at the same time. GIL held; released while
// waiting.
#ifndef WM_PYTHON_MESSAGE_EXCHANGE_H
#define WM_PYTHON_MESSAGE_EXCHANGE_H

#include "python/core/module.h"

extern const char wm_py_comm_sendrecv_doc[], wm_py_comm_sendrecv_replace_doc[],
    wm_py_comm_isendrecv_doc[], wm_py_comm_isendrecv_replace_doc[];

PyObject *
wm_py_comm_sendrecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
                    PyObject *keywords);

PyObject *
wm_py_comm_sendrecv_replace(PyObject *self, PyObject *const *args,
                            Py_ssize_t given, PyObject *keywords);

PyObject *
wm_py_comm_isendrecv(PyObject *self, PyObject *const *args, Py_ssize_t given,
                     PyObject *keywords);

PyObject *
wm_py_comm_isendrecv_replace(PyObject *self, PyObject *const *args,
                             Py_ssize_t given, PyObject *keywords);

#endif
