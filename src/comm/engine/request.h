// SPDX-License-Identifier: BSD-3-Clause
// MPI requests of our operations: generalized requests that the engine
// completes, so that any MPI_Waitall ends only when the data have arrived. A
// wait in MPI does not advance our operations. There must be a progress thread
// (MPI_THREAD_MULTIPLE), or a thread in our code.
#ifndef WM_COMM_ENGINE_REQUEST_H
#define WM_COMM_ENGINE_REQUEST_H

#include "comm/engine/op.h"

// Gives the operation an MPI request. The request holds a reference until MPI
// frees it. If the operation ended in the call that began it, gives a request
// of MPI's that has ended.
WM_MUST_CHECK int
wm_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err);

// Gives an operation that has not ended its op->request. Lock held.
WM_MUST_CHECK int
wm_request_start_lock_held(wm_op_t *op, wm_error_t *err);

// If `keep` is set, MPI does not raise, in this thread, the errors of
// operations that it waits for: the caller does. Returns the value before.
bool
wm_request_keep_errors(bool keep);

// Fills MPI's status for an operation that has ended.
void
wm_request_status(const wm_op_t *op, MPI_Status *status);

#endif
