// SPDX-License-Identifier: BSD-3-Clause
// Votes that the decision log (comm/node/decision_log.h) has no room for,
// because this rank is far ahead of others. Each says that MPI does a
// nonblocking call. This rank goes on; the engine casts the votes later.
// Engine lock held.
#ifndef WM_COMM_COLL_RUN_DEFERRED_VOTES_H
#define WM_COMM_COLL_RUN_DEFERRED_VOTES_H

#include "comm/comm/comm.h"

// One for each communicator; zeroed: no votes.
typedef struct {
    uint32_t *calls;
    size_t count, capacity;
} wm_deferred_votes_t;

// Casts the vote now, or lets the engine cast it later.
WM_MUST_CHECK int
wm_deferred_votes_add(wm_deferred_votes_t *votes, wm_comm_t *comm,
                      uint32_t call, wm_error_t *err);

void
wm_deferred_votes_free(wm_deferred_votes_t *votes);

#endif
