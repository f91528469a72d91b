// SPDX-License-Identifier: BSD-3-Clause
// The decision log of a barrier: nonblocking calls that not all ranks have
// entered, and whether GPUs or MPI do them. The log is in the slot of rank 0;
// every rank writes its votes there. Any thread, without a lock.
#ifndef WM_COMM_NODE_DECISION_LOG_H
#define WM_COMM_NODE_DECISION_LOG_H

#include "comm/node/barrier.h"

// The decision on a nonblocking call: GPUs do it if all ranks vote for them.
typedef enum {
    WM_DECISION_OPEN,
    WM_DECISION_GPUS,
    WM_DECISION_MPI
} wm_decision_t;

// Votes on a call. Each rank votes once for each call, in their order,
// numbered from 1 on. `capable`: GPUs can do it for this rank; else MPI does,
// and the decision need not be read. Returns false if there is no entry yet,
// as this rank is far ahead of others: vote again later.
WM_MUST_CHECK bool
wm_decision_vote(const wm_barrier_t *barrier, uint32_t call, bool capable);

// Returns the decision. After a decision it must not be called again, as
// another call may take the entry.
wm_decision_t
wm_decision_read(const wm_barrier_t *barrier, uint32_t call);

// Gives the call to MPI, unless all have voted for GPUs by now.
void
wm_decision_withdraw(const wm_barrier_t *barrier, uint32_t call);

#endif
