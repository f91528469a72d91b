// SPDX-License-Identifier: BSD-3-Clause
// Collectives of mpi4py that an engine besides MPI may do
// (comm/coll/call/coll_engine.h). GIL held.
#ifndef WM_PYTHON_COMM_DIRECT_CALL_H
#define WM_PYTHON_COMM_DIRECT_CALL_H

#include "python/comm/coll_args.h"
#include "python/core/module.h"

// Called with an exception set, which stays, after MPI was to do a call and
// has refused it (attempt.h): MPI does this rank's next call in its place.
void
wm_py_direct_refused(PyObject *self, wm_coll_form_t form);

// Returns true if an argument is memory of a GPU.
bool
wm_py_direct_any_device(PyObject *const *args, Py_ssize_t given,
                        PyObject *names);

// Does a collective, of a communicator and the call's arguments. WM_COLL_DONE,
// or mpi4py is to do it (WM_COLL_BY_MPI, WM_COLL_UNNUMBERED), as MPI does it
// on all ranks, and the core does not read this rank's arguments.
// WM_COLL_FAILED with an exception: on all ranks if the call has failed; on
// this rank alone, which has not entered the call, if it is refused.
// WM_COLL_MPIS_ERROR with MPI's exception, which tells no cause. `plain`: all
// buffers are plain host memory, so on one host this rank declines and does
// not wait; between hosts it asks.
wm_coll_result_t
wm_py_direct_call(wm_coll_kind_t kind, PyObject *self, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords, bool plain);

// Begins the nonblocking form. WM_COLL_DONE: *result is the request;
// WM_COLL_BY_MPI: call MPI on *result, a communicator; WM_COLL_UNNUMBERED:
// call MPI on the communicator given; WM_COLL_FAILED with an exception.
// `plain`: all buffers are plain host memory.
wm_coll_result_t
wm_py_direct_begin(wm_coll_kind_t kind, PyObject *self, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, bool plain,
                   PyObject **result);

// Reads a call's arguments into a new object, which keeps their arrays.
// Returns NULL, maybe with an exception, if MPI is to read the arguments.
// `over`, unless NULL, becomes true if the exception ends the call; else it is
// dropped.
PyObject *
wm_py_direct_read(wm_coll_kind_t kind, wm_comm_t *comm, PyObject *const *args,
                  Py_ssize_t given, PyObject *keywords, bool *over);

// Returns the arguments that were read. Borrowed.
wm_py_coll_args_t *
wm_py_direct_asked(PyObject *read);

// Begins a call, and gives it an MPI request. GIL not held. Takes over `kept`.
// WM_COLL_BY_MPI: MPI's own call is to be made.
WM_MUST_CHECK wm_coll_result_t
wm_py_direct_start(wm_comm_t *comm, const wm_coll_t *call, wm_buffer_t *kept,
                   wm_op_t **op, MPI_Request *request, wm_error_t *err);

// Returns the communicator for MPI's own nonblocking calls; NULL with an
// exception.
PyObject *
wm_py_direct_mpis(const wm_comm_t *comm);

// Returns the communicator for MPI's own call on `self`. `declines`: first as
// wm_py_direct_decline() does.
PyObject *
wm_py_direct_mpis_of(PyObject *self, bool declines);

// Returns true if MPI must be asked in another way (comm/comm/neighbor.h) for
// blocking, or for other, collectives of neighbours.
bool
wm_py_direct_is_paired(PyObject *self, bool blocks);

// Declines a call whose arguments MPI is to read, after all calls that were
// begun before. Returns the communicator for MPI's own call; NULL with an
// exception.
PyObject *
wm_py_direct_decline(wm_comm_t *comm);

// For comm.on(stream): enqueues a collective, or a barrier, on the stream.
// Returns None, or a request if it `begins`; NULL with an exception.
PyObject *
wm_py_direct_on_stream(wm_coll_kind_t kind, bool begins, PyObject *self,
                       PyObject *const *args, Py_ssize_t given,
                       PyObject *keywords);

#endif
