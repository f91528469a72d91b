// SPDX-License-Identifier: BSD-3-Clause
// Barriers, and blocking collectives of GPU memory. If all ranks have GPU
// memory, the GPUs do the call, directly or through symmetric memory; else MPI
// does. A rank with host memory declines and does not wait. A call cannot be
// interrupted once it has begun. If one rank fails, or is in another
// collective, all raise. GIL released by the caller, engine lock not held. The
// caller keeps the buffers and releases them.
#ifndef WM_COMM_COLL_RUN_COLL_H
#define WM_COMM_COLL_RUN_COLL_H

#include "comm/coll/call/call.h"

// Waits for all ranks. Also closes mappings of memory that other ranks have
// freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

// Returns true if ranks exchange data before calls that MPI may do.
static inline bool
wm_coll_has_barrier(const wm_comm_t *comm)
{
    return comm->barrier != NULL;
}

// Does a collective on the GPUs if all ranks can; returns 1 if MPI has to do
// it. Called by all ranks of a communicator for which wm_coll_has_barrier() is
// true; for an intercommunicator, on its `whole`.
WM_MUST_CHECK int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err);

// Replaces wm_coll_call() on a rank that needs MPI: then MPI does the call for
// all ranks. Does not wait.
void
wm_coll_decline(wm_comm_t *comm);

// Called after a call that MPI was to do, and has refused on this rank: it has
// not happened, and MPI does this rank's next call in its place. No-op if
// wm_coll_has_barrier() is false.
void
wm_coll_refused(wm_comm_t *comm);

#endif
