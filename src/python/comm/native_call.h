// SPDX-License-Identifier: BSD-3-Clause
// Collectives of mpi4py's that the GPUs may do by themselves (comm/coll). GIL
// held.
#ifndef WM_PYTHON_COMM_NATIVE_CALL_H
#define WM_PYTHON_COMM_NATIVE_CALL_H

#include "comm/coll/agreement.h"
#include "python/core/module.h"

// The call of that name, which is that of its blocking form; WM_CALL_UNKNOWN
// where the form that is asked for is not ours.
wm_call_kind_t
wm_py_native_kind(const char *name, bool begins);

// Of a communicator and the rest of the arguments. 0 where it was done, 1
// where MPI is to do it, -1 with an exception: on all ranks alike.
int
wm_py_native_call(wm_call_kind_t kind, PyObject *self, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords);

// Its nonblocking form. 0: *result is its request; 1: MPI's own is to be made
// on *result, a communicator; 2: on the one given; -1 with an exception.
// `plain`: all buffers are plain host memory.
int
wm_py_native_begin(wm_call_kind_t kind, PyObject *self, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, bool plain,
                   PyObject **result);

// Of comm.on(stream): gives it, or a barrier, to the stream, and returns None,
// or, where it `begins`, a request. NULL with an exception.
PyObject *
wm_py_native_on_stream(wm_call_kind_t kind, bool begins, PyObject *self,
                       PyObject *const *args, Py_ssize_t given,
                       PyObject *keywords);

#endif
