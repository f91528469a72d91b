// SPDX-License-Identifier: BSD-3-Clause
// Psend_init and Precv_init. GIL held.
#ifndef WM_PYTHON_REQUEST_PY_PARTITIONED_H
#define WM_PYTHON_REQUEST_PY_PARTITIONED_H

#include "python/core/module.h"

extern const char wm_py_comm_psend_init_doc[], wm_py_comm_precv_init_doc[];

PyObject *
wm_py_comm_psend_init(PyObject *self, PyObject *const *args, Py_ssize_t given,
                      PyObject *keywords);

PyObject *
wm_py_comm_precv_init(PyObject *self, PyObject *const *args, Py_ssize_t given,
                      PyObject *keywords);

#endif
