// SPDX-License-Identifier: BSD-3-Clause
// Barriers, and blocking collectives of GPU memory: by the GPUs, or through
// symmetric memory, if all ranks have GPU memory, else by MPI. A rank that has
// host memory declines, and does not wait. What has begun cannot be taken
// back, so nothing here can be interrupted; where one rank fails, or is in
// another collective, all raise. GIL released by the caller, engine lock not
// held. The buffers stay the caller's, who releases them.
#ifndef WM_COMM_COLL_COLL_H
#define WM_COMM_COLL_COLL_H

#include "comm/coll/call.h"

// Also closes mappings of memory that other ranks have freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

// Returns true if ranks exchange data before calls that MPI may do.
static inline bool
wm_coll_is_asked(const wm_comm_t *comm)
{
    return comm->barrier != NULL;
}

// By all ranks of such a communicator, between groups their `whole`: does it
// on the GPUs where all are capable; 1 where MPI is to do it.
WM_MUST_CHECK int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err);

// Instead, by a rank that MPI is to serve: MPI serves all. Does not wait.
void
wm_coll_decline(wm_comm_t *comm);

#endif
