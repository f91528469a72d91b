// SPDX-License-Identifier: BSD-3-Clause
// Requests that `…_init` of a collective makes if GPUs do the collective. GIL
// held.
#ifndef WM_PYTHON_COMM_PY_PERSISTENT_COLL_H
#define WM_PYTHON_COMM_PY_PERSISTENT_COLL_H

#include "python/comm/direct_call.h"

// Makes MPI's own persistent request. `numbered`: all ranks have numbered the
// call. Returns NULL with an exception.
typedef PyObject *
wm_py_mpis_init_t(const void *context, bool numbered);

// Makes a persistent request, of a communicator and the call's arguments.
// Called by all ranks. `again` starts the collective by MPI: it is called with
// the request to become active, a communicator and the arguments. `plain`: all
// buffers are plain host memory. `always`: MPI has no usable persistent form
// of the call, so `again` gets None for the request and checks the arguments
// if GPUs cannot do the call; else `mpis` makes MPI's own request. A rank that
// needs it makes it before it meets the others, as MPI may refuse the
// arguments. Returns 0: *result is an inactive request; 1: make MPI's own; -1
// with an exception.
int
wm_py_persistent_coll_new(wm_coll_kind_t kind, PyObject *self,
                          PyObject *const *args, Py_ssize_t given,
                          PyObject *keywords, bool plain, bool always,
                          PyObject *again, wm_py_mpis_init_t *mpis,
                          const void *context, PyObject **result);

#endif
