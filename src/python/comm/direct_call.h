// SPDX-License-Identifier: BSD-3-Clause
// Collectives of mpi4py's that GPUs may do (comm/coll/direct/direct.h). GIL
// held.
#ifndef WM_PYTHON_COMM_DIRECT_CALL_H
#define WM_PYTHON_COMM_DIRECT_CALL_H

#include "python/comm/asked.h"
#include "python/core/module.h"

// With an exception, where MPI was to do it: if that came before MPI's call,
// the others are in it, and wait for the next one of this rank. `begins`: it
// does not block.
void
wm_py_direct_refused(PyObject *self, bool begins);

// Of a communicator and the rest of the arguments. 0 where it was done, 1
// where MPI is to do it, -1 with an exception: on all ranks alike. 2: MPI is,
// and the others are in its call already. `plain`: all buffers are plain host
// memory, so that this rank declines, and does not wait.
int
wm_py_direct_call(wm_call_kind_t kind, PyObject *self, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords, bool plain);

// Its nonblocking form. 0: *result is its request; 1: MPI's own is to be made
// on *result, a communicator; 2: on the one given; -1 with an exception.
// `plain`: all buffers are plain host memory.
int
wm_py_direct_begin(wm_call_kind_t kind, PyObject *self, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, bool plain,
                   PyObject **result);

// Reads a call's arguments, which what it gives keeps; NULL, maybe with an
// exception, where MPI is to read them.
PyObject *
wm_py_direct_read(wm_call_kind_t kind, const wm_comm_t *comm,
                  PyObject *const *args, Py_ssize_t given, PyObject *keywords);

// Borrowed.
wm_py_asked_t *
wm_py_direct_asked(PyObject *read);

// GIL not held: begins a call, and gives it an MPI request. `kept` is taken
// over. 0; 1 where MPI's own is to be made now; or an error.
WM_MUST_CHECK int
wm_py_direct_start(wm_comm_t *comm, const wm_coll_t *call, wm_buffer_t *kept,
                   wm_op_t **op, MPI_Request *request, wm_error_t *err);

// The communicator that MPI's own is to be made on, where it is; NULL with an
// exception.
PyObject *
wm_py_direct_mpis(const wm_comm_t *comm);

// That of a communicator; `declines`: as wm_py_direct_decline() has it.
PyObject *
wm_py_direct_mpis_of(PyObject *self, bool declines);

// Returns true if MPI must be asked in another way (comm/comm/neighbor.h) for
// blocking, or for other, collectives of neighbours.
bool
wm_py_direct_is_paired(PyObject *self, bool blocks);

// It, after all that were begun before, of arguments that MPI is to read.
PyObject *
wm_py_direct_decline(wm_comm_t *comm);

// Of comm.on(stream): gives it, or a barrier, to the stream, and returns None,
// or, where it `begins`, a request. NULL with an exception.
PyObject *
wm_py_direct_on_stream(wm_call_kind_t kind, bool begins, PyObject *self,
                       PyObject *const *args, Py_ssize_t given,
                       PyObject *keywords);

#endif
