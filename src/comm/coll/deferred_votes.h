// SPDX-License-Identifier: BSD-3-Clause
// Votes of this rank that MPI does a nonblocking call, which do not fit into
// the decision log yet (comm/node/barrier.h), as this rank is far ahead of the
// others: it goes on, and the engine casts them later. Engine lock held.
#ifndef WM_COMM_COLL_DEFERRED_VOTES_H
#define WM_COMM_COLL_DEFERRED_VOTES_H

#include "comm/comm/comm.h"

// Of a communicator; zeroed: none.
typedef struct {
    uint32_t *calls;
    size_t count, capacity;
} wm_deferred_votes_t;

// Casts the vote now, or by the engine.
WM_MUST_CHECK int
wm_deferred_votes_add(wm_deferred_votes_t *votes, wm_comm_t *comm,
                      uint32_t call, wm_error_t *err);

void
wm_deferred_votes_free(wm_deferred_votes_t *votes);

#endif
