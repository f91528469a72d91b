// SPDX-License-Identifier: BSD-3-Clause
// Exchanges of data between all ranks of a communicator, for what they make
// together: engines of collectives that open, symmetric memory, windows. GIL
// released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_COLL_GATHER_H
#define WM_COMM_COLL_DIRECT_COLL_GATHER_H

#include "comm/comm/comm.h"

// Gathers `nbytes` of each rank, which are alike, into all[rank * nbytes].
// Collective: a rank that has failed calls it, too, and tells so in its bytes.
// Returns MPI's errors, such as that of a dead rank.
WM_MUST_CHECK int
wm_coll_gather(wm_comm_t *comm, const void *mine, size_t nbytes, void *all,
               wm_error_t *err);

// Gathers, unless a rank has failed (`code`, with its error in *err): then all
// raise the error of the first one, with its name; but another rank that has
// failed with the same code keeps its own text. `what`, the call as the user
// knows it, and `nbytes`, which may be 0, are alike on all ranks: else all
// raise, as ranks are in different calls.
WM_MUST_CHECK int
wm_coll_exchange(wm_comm_t *comm, const char *what, int code, const void *mine,
                 size_t nbytes, void *all, wm_error_t *err);

#endif
