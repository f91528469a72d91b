// SPDX-License-Identifier: BSD-3-Clause
// Ranks that died and communicators that were revoked, where MPI tells
// (User-Level Failure Mitigation: Open MPI 5 and MPICH). Calls that wait for
// MPI hear of it from MPI; what waits for words in shared memory, which nobody
// will write any more, asks here. Engine lock held.
#ifndef WM_COMM_COMM_FAILURE_H
#define WM_COMM_COMM_FAILURE_H

#include "comm/comm/comm.h"

// WM_ERR_MPI, with MPI's code for it, where the rank is dead or the
// communicator revoked. MPI is asked every 20 ms at most. When a rank is found
// dead the words that streams here may wait for are written in its stead.
WM_MUST_CHECK int
wm_failure_look(wm_comm_t *comm, int rank, wm_error_t *err);

// The same of all ranks: of what ends when all have come.
WM_MUST_CHECK int
wm_failure_look_at_all(wm_comm_t *comm, wm_error_t *err);

// Now and then, of what looks again and again: whether to ask so.
static inline bool
wm_failure_is_due(unsigned *looks)
{
    return ++*looks % 64 == 0;
}

// The error of a rank that has died; the size: of what was revoked.
WM_MUST_CHECK int
wm_failure_set(const wm_comm_t *comm, int rank, wm_error_t *err);

// Whether MPI tells of any, as far as is known by now.
bool
wm_failure_is_told(void);

// Asks at once, after an error of MPI's.
void
wm_failure_release(wm_comm_t *comm);

// The code of a receive from anybody where one has died: of a blocking call,
// as the request does not go on.
int
wm_failure_of_any(int code);

// Revokes the private communicators, so that all ranks' calls on them end.
WM_MUST_CHECK int
wm_failure_revoke(wm_comm_t *comm, wm_error_t *err);

#endif
