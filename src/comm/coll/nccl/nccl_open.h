// SPDX-License-Identifier: BSD-3-Clause
// How ranks open NCCL for a communicator: all in one call, on which they agree
// before and after; none waits in NCCL for a rank that has died. A parent that
// does not block is polled, and makes a child that does the calls, as a
// communicator that does not block costs 50 us a call. The first calls of the
// child make its connections, so that no later call waits for another rank.
#ifndef WM_COMM_COLL_NCCL_NCCL_OPEN_H
#define WM_COMM_COLL_NCCL_NCCL_OPEN_H

#include "comm/coll/nccl/nccl_library.h"
#include "comm/comm/comm.h"

// See wm_coll_engine_t.open: *state becomes a wm_mover_comm_t.
WM_MUST_CHECK int
wm_nccl_open(wm_comm_t *comm, int device, void **state, wm_error_t *err);

#endif
