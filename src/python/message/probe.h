// SPDX-License-Identifier: BSD-3-Clause
// The probes of communicators. GIL held; released while waiting.
#ifndef WM_PYTHON_MESSAGE_PROBE_H
#define WM_PYTHON_MESSAGE_PROBE_H

#include "python/core/module.h"

extern const char wm_py_comm_probe_doc[], wm_py_comm_iprobe_doc[],
    wm_py_comm_mprobe_doc[], wm_py_comm_improbe_doc[];

PyObject *
wm_py_comm_probe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                 PyObject *keywords);

PyObject *
wm_py_comm_iprobe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                  PyObject *keywords);

PyObject *
wm_py_comm_mprobe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                  PyObject *keywords);

PyObject *
wm_py_comm_improbe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                   PyObject *keywords);

#endif
