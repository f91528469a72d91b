// SPDX-License-Identifier: BSD-3-Clause
// Who is next to whom in a communicator with a topology. GIL released by the
// caller, as MPI is asked.
#ifndef WM_COMM_COMM_NEAR_H
#define WM_COMM_COMM_NEAR_H

#include "comm/comm/comm.h"
#include "comm/node/gate.h"

// Ranks in the order of a neighbourhood collective's blocks; -1: of nobody.
typedef struct {
    int count;
    int ranks[WM_GATE_RANKS];
} wm_near_t;

// False where there are none, or one is so twice: which of its blocks is which
// then, MPI alone knows.
bool
wm_near_find(const wm_comm_t *comm, wm_near_t *sources,
             wm_near_t *destinations);

// A communicator of the ranks of `base`, collective over it, with the topology
// that `user` has, of the same ranks; where it has none, by MPI_Comm_split,
// which copies no attributes.
WM_MUST_CHECK int
wm_near_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone, wm_error_t *err);

#endif
