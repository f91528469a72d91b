// SPDX-License-Identifier: BSD-3-Clause
// MPI's own requests, which the engine tests until they end. Engine lock held
// for wm_posted_…; the others need no lock.
#ifndef WM_COMM_ENGINE_POSTED_H
#define WM_COMM_ENGINE_POSTED_H

#include "comm/engine/op.h"

// Turns the result of an MPI call into an error that names the call.
WM_MUST_CHECK int
wm_mpi_check(int result, const char *call, wm_error_t *err);

// Returns true if an error, or error class, of MPI's says that MPI has refused
// a call's arguments: the call has not happened. Others come while a call is
// under way: truncation, dead ranks, revocation.
bool
wm_mpi_refuses(int error);

// Makes a private communicator of the same ranks; collective over them. Its
// errors return, and it has no attributes and no topology.
WM_MUST_CHECK int
wm_mpi_duplicate(MPI_Comm comm, MPI_Comm *duplicate, wm_error_t *err);

// For kinds that only wait for an MPI request: returns true when the request
// has ended, with or without an error; and the `asks` of their kind
// (wm_op_kind_t).
bool
wm_posted_has_ended(wm_op_t *op, MPI_Request *request);
wm_asks_t
wm_posted_asks(const wm_op_t *op);

// Returns true if a receive from any rank has ended, and its message, if it
// was not cancelled, is there, though MPI_Test or MPI_Wait has failed: Open
// MPI tells of a death again that it told before the message came.
bool
wm_posted_came(MPI_Request *request, MPI_Status *status);

// Lets the engine test a request that nobody waits for until it ends. Sets
// *request to MPI_REQUEST_NULL.
void
wm_posted_leave(wm_comm_t *comm, MPI_Request *request);

#endif
