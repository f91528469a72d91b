// SPDX-License-Identifier: BSD-3-Clause
// What `…_init` of a collective makes where GPUs do it. GIL held.
#ifndef WM_PYTHON_COMM_PY_PERSISTENT_COLL_H
#define WM_PYTHON_COMM_PY_PERSISTENT_COLL_H

#include "python/comm/direct_call.h"

// Of a communicator and the rest of the arguments, by all ranks. `again` is
// what begins it by MPI: called with the request to become active, a
// communicator and the arguments. `plain`: all buffers are plain host memory.
// `always`: MPI has no persistent form of it that can be used.
// 0: *result is an inactive wm.Prequest; 1: MPI's own is to be made; -1 with
// an exception.
int
wm_py_persistent_coll_new(wm_call_kind_t kind, PyObject *self,
                          PyObject *const *args, Py_ssize_t given,
                          PyObject *keywords, bool plain, bool always,
                          PyObject *again, PyObject **result);

#endif
