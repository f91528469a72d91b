// SPDX-License-Identifier: BSD-3-Clause
// Nonblocking collectives. With a barrier each rank votes in the decision log
// (comm/node/decision_log.h), and goes on; between hosts the call's class
// tells the engine (coll_class.h). If an engine besides MPI serves each rank,
// the first one that serves all does the call, one call after the other,
// beside the program. Else MPI does, on the communicator's `data`, on which
// all ranks begin MPI's nonblocking calls in the same order. Engine lock not
// held; GIL released by the caller.
#ifndef WM_COMM_COLL_RUN_NONBLOCKING_H
#define WM_COMM_COLL_RUN_NONBLOCKING_H

#include "comm/coll/run/coll.h"

// Returns true if ranks vote on nonblocking calls, so that MPI's are made on
// `data`.
static inline bool
wm_nonblocking_is_voted(const wm_comm_t *comm)
{
    return wm_comm_is_one_host(comm);
}

// Returns true if wm_nonblocking_begin() begins the starts of the persistent
// call of a communicator, and not MPI.
bool
wm_nonblocking_is_ours(const wm_comm_t *comm);

// Returns true if any call has not passed its turn.
bool
wm_nonblocking_is_busy(const wm_comm_t *comm);

// Waits until all calls before have begun, so that a call of another form
// comes behind them, as on all ranks.
WM_MUST_CHECK int
wm_nonblocking_await(wm_comm_t *comm, wm_error_t *err);

// Begins a call. WM_COLL_DONE: *op has one reference for the caller;
// WM_COLL_BY_MPI: the caller must make MPI's own nonblocking call on `data`
// now; WM_COLL_UNNUMBERED, between hosts: on the user's communicator. `call`
// and its buffers must live as long as `kept`, which is taken over with
// WM_COLL_DONE, and released when the memory is no longer needed.
WM_MUST_CHECK wm_coll_result_t
wm_nonblocking_begin(wm_comm_t *comm, const wm_coll_t *call, wm_buffer_t *kept,
                     wm_op_t **op, wm_error_t *err);

// Called before MPI's own call, if we cannot read this rank's arguments.
// Returns when all calls before it have begun.
WM_MUST_CHECK int
wm_nonblocking_decline(wm_comm_t *comm, wm_error_t *err);

// Declares that all calls of the communicator are starts of one persistent
// call, one after the other, on all ranks. If one start goes from GPU to GPU,
// the next one need not vote.
WM_MUST_CHECK int
wm_nonblocking_make_persistent(wm_comm_t *comm, wm_error_t *err);

#endif
