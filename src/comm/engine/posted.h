// SPDX-License-Identifier: BSD-3-Clause
// Requests of MPI's own that the engine sees to. Engine lock held.
#ifndef WM_COMM_ENGINE_POSTED_H
#define WM_COMM_ENGINE_POSTED_H

#include "comm/engine/op.h"

// An MPI call's result as an error naming the call.
WM_MUST_CHECK int
wm_mpi_check(int result, const char *call, wm_error_t *err);

// A communicator of the same ranks for what the user does not see, collective
// over them: its errors return, and it has no attributes and no topology.
WM_MUST_CHECK int
wm_mpi_duplicate(MPI_Comm comm, MPI_Comm *duplicate, wm_error_t *err);

// For kinds that do nothing but wait for one of MPI's requests: whether it has
// ended, well or not; and what their steps ask (wm_op_kind_t).
bool
wm_posted_has_ended(wm_op_t *op, MPI_Request *request);
wm_asks_t
wm_posted_asks(const wm_op_t *op);

// An operation that ends when MPI's request does, or NULL.
wm_op_t *
wm_posted_begin(wm_comm_t *comm, MPI_Request request);

// Sees a request that nobody waits for to its end; frees none.
void
wm_posted_leave(wm_comm_t *comm, MPI_Request *request);

#endif
