// SPDX-License-Identifier: BSD-3-Clause
// An exchange of data between all ranks of a communicator, for engines of
// collectives that open: an ncclUniqueId, addresses. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_COLL_GATHER_H
#define WM_COMM_COLL_DIRECT_COLL_GATHER_H

#include "comm/comm/comm.h"

// Gathers `nbytes` of each rank, which are alike, into all[rank * nbytes].
// Collective: a rank that has failed calls it, too, and tells so in its bytes.
// Returns MPI's errors, such as that of a dead rank.
WM_MUST_CHECK int
wm_coll_gather(wm_comm_t *comm, const void *mine, size_t nbytes, void *all,
               wm_error_t *err);

#endif
