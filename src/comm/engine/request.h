// SPDX-License-Identifier: BSD-3-Clause
// Requests that are MPI requests: a generalized request that the engine
// completes, so that anybody's MPI_Waitall ends only when the data is there.
// Waiting in MPI itself advances nothing of ours: there must be a progress
// thread (MPI_THREAD_MULTIPLE), or somebody in our code.
#ifndef WM_COMM_ENGINE_REQUEST_H
#define WM_COMM_ENGINE_REQUEST_H

#include "comm/engine/op.h"

// Gives the operation an MPI request, which holds a reference of its own until
// MPI frees it; one that ended as it began, a request of MPI's that has ended.
WM_MUST_CHECK int
wm_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err);

// The same for who has the lock, of one that has not ended: op->request.
WM_MUST_CHECK int
wm_request_start_lock_held(wm_op_t *op, wm_error_t *err);

// While it is set MPI does not raise, in this thread, the errors of operations
// that it waits for: the caller does. Returns what it was before.
bool
wm_request_keep_errors(bool keep);

// What MPI's status tells of an operation that has ended.
void
wm_request_status(const wm_op_t *op, MPI_Status *status);

#endif
