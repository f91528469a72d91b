// SPDX-License-Identifier: BSD-3-Clause
// Numbers that all ranks of an intracommunicator exchange before a
// collective; each rank gets the greatest that any gave. The ranks use the
// barrier of a host (comm/node/barrier.h), or send messages, in as many rounds
// as the logarithm of their number: it ends when all have come. GIL released
// by the caller, engine lock not held.
#ifndef WM_COMM_COLL_AGREE_H
#define WM_COMM_COLL_AGREE_H

#include "comm/comm/comm.h"

#define WM_AGREE_VALUES 7
#define WM_AGREE_BYTES 2000 // that a rank publishes at a barrier, at most

typedef struct {
    int64_t values[WM_AGREE_VALUES];
} wm_agree_t;

// All ranks call it in the same order as their collectives. MPI's errors. At
// a barrier a rank may publish so many bytes beside, which each of the others
// reads, until the next time.
WM_MUST_CHECK int
wm_agree_exchange(wm_comm_t *comm, wm_agree_t *agreed, const void *published,
                  size_t nbytes, wm_error_t *err);

// At a barrier: 1 where a rank has declined (wm_barrier_enter), and nothing
// was exchanged.
WM_MUST_CHECK int
wm_agree_ask(wm_comm_t *comm, wm_agree_t *agreed, const void *published,
             size_t nbytes, wm_error_t *err);

// The two halves of it, which do not wait: all must have arrived at step 0 of
// the epoch between them.
void
wm_agree_publish(wm_barrier_t *barrier, const wm_agree_t *agreed,
                 const void *published, size_t nbytes);

void
wm_agree_merge(const wm_barrier_t *barrier, wm_agree_t *agreed);

const void *
wm_agree_published(const wm_barrier_t *barrier, int rank);

// What we have published, to be changed before we arrive at a step.
void *
wm_agree_mine(const wm_barrier_t *barrier);

#endif
