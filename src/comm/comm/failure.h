// SPDX-License-Identifier: BSD-3-Clause
// Ranks that died and communicators that were revoked, if MPI reports them
// (User-Level Failure Mitigation: Open MPI 5 and MPICH). Calls that wait for
// MPI get such errors from MPI. Calls that wait for words in shared memory,
// which a dead rank no longer writes, ask here. Engine lock held.
#ifndef WM_COMM_COMM_FAILURE_H
#define WM_COMM_COMM_FAILURE_H

#include "comm/comm/comm.h"

// Returns WM_ERR_MPI, with MPI's code, if the rank is dead or the communicator
// revoked. Asks MPI every 20 ms at most. If a rank is found dead, writes, in
// its place, the words that streams here may wait for.
WM_MUST_CHECK int
wm_failure_look(wm_comm_t *comm, int rank, wm_error_t *err);

// Does the same for all ranks, for calls that end when all have come.
WM_MUST_CHECK int
wm_failure_look_at_all(wm_comm_t *comm, wm_error_t *err);

// Called at each of many looks; returns true for every 64th one, which should
// ask for failures.
static inline bool
wm_failure_is_due(unsigned *looks)
{
    return ++*looks % 64 == 0;
}

// Returns the error of a rank that has died; the size: of a revoked
// communicator.
WM_MUST_CHECK int
wm_failure_set(const wm_comm_t *comm, int rank, wm_error_t *err);

// Returns true if MPI reports failures, as far as is known.
bool
wm_failure_is_told(void);

// Asks MPI at once, after an error of MPI's.
void
wm_failure_release(wm_comm_t *comm);

// Returns the code of a blocking receive from any rank if a rank has died: the
// pending code becomes the final one, as the request does not go on.
int
wm_failure_of_any(int code);

// Lets receives from any rank go on without the ranks that died, after an
// error of one. Returns false if they cannot: the communicator was revoked, or
// this MPI has no such function.
bool
wm_failure_go_on(wm_comm_t *comm);

// Returns true if an error says that a rank has died or the communicator was
// revoked.
bool
wm_failure_is_cause(const wm_error_t *err);

// Revokes the private communicators, so that calls of all ranks on them end.
WM_MUST_CHECK int
wm_failure_revoke(wm_comm_t *comm, wm_error_t *err);

#endif
