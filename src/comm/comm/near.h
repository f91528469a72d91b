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
    bool crossed; // of two blocks of a dimension the second comes first
} wm_near_t;

// False where there is no topology, or there are more than WM_GATE_RANKS.
bool
wm_near_find(const wm_comm_t *comm, wm_near_t *sources,
             wm_near_t *destinations);

// Whether there are some, and none twice: which of its blocks is which then,
// MPIs do not agree on.
bool
wm_near_are_different(const wm_near_t *near);

typedef struct {
    int rank, block; // -1: it has none
} wm_near_part_t;

#define WM_NEAR_PARTS (2 * WM_GATE_RANKS)

// The blocks of rank 0, of rank 1 and so on, among those of one rank as the
// other side has them: in their order, as the standard says, but that in a
// Cartesian topology what is sent down is received from above. How many.
int
wm_near_parts(const wm_near_t *near, int size, wm_near_part_t *parts);

// A communicator of the ranks of `base`, collective over it, with the topology
// that `user` has, of the same ranks; where it has none, by MPI_Comm_split,
// which copies no attributes.
WM_MUST_CHECK int
wm_near_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone, wm_error_t *err);

#endif
