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

#endif
