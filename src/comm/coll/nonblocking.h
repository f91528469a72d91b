// SPDX-License-Identifier: BSD-3-Clause
// Nonblocking collectives of ranks that have a barrier. Each rank votes
// in the decision log (comm/node/barrier.h), and goes on: where all have voted
// for GPUs, these do it, one call after the other, beside the program; else
// MPI does, on the communicator's `data`, on which all ranks begin its
// nonblocking calls in their order. Engine lock not held; GIL released by the
// caller.
#ifndef WM_COMM_COLL_NONBLOCKING_H
#define WM_COMM_COLL_NONBLOCKING_H

#include "comm/coll/coll.h"

// Returns true if ranks vote on them, so that MPI's are made on `data`.
static inline bool
wm_nonblocking_is_voted(const wm_comm_t *comm)
{
    return comm->aside[0] != NULL;
}

// Whether any has its turn to come.
bool
wm_nonblocking_is_busy(const wm_comm_t *comm);

// Begins a call: 0, with one reference for the caller; an error; or 1, where
// MPI's own nonblocking call on `data` is to be made now. `call` and its
// buffers live for as long as `kept`, which is taken over with 0, and released
// when the memory is no longer needed.
WM_MUST_CHECK int
wm_nonblocking_begin(wm_comm_t *comm, const wm_coll_t *call, wm_buffer_t *kept,
                     wm_op_t **op, wm_error_t *err);

// Before MPI's own call where this rank's arguments are not ours to read: when
// all before it have been begun.
WM_MUST_CHECK int
wm_nonblocking_decline(wm_comm_t *comm, wm_error_t *err);

// All its calls are starts of one persistent call, one after the other, by all
// ranks alike: where one goes from GPU to GPU, the next does without asking.
WM_MUST_CHECK int
wm_nonblocking_make_persistent(wm_comm_t *comm, wm_error_t *err);

// When nobody uses the communicator any more.
void
wm_nonblocking_free(wm_nonblocking_t *nonblocking);

#endif
