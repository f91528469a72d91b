// SPDX-License-Identifier: BSD-3-Clause
// Nonblocking calls that MPI does for this rank, of which the others are still
// to be told in the book (comm/node/barrier.h): who is far ahead of them finds
// no entry there, and goes on. Engine lock held.
#ifndef WM_COMM_COLL_OWED_H
#define WM_COMM_COLL_OWED_H

#include "comm/comm/comm.h"

// Of a communicator; zeroed: none.
typedef struct {
    uint32_t *calls;
    size_t count, room;
} wm_owed_t;

// Tells them now, or by the engine.
WM_MUST_CHECK int
wm_owed_tell(wm_owed_t *owed, wm_comm_t *comm, uint32_t call, wm_error_t *err);

void
wm_owed_free(wm_owed_t *owed);

#endif
