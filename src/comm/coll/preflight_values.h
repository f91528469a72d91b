// SPDX-License-Identifier: BSD-3-Clause
// The allreduce of a preflight: before a collective all ranks of an
// intracommunicator exchange numbers, and each gets the maximum of each
// number. The ranks use the barrier of a host (comm/node/barrier.h), or send
// messages, in as many rounds as the logarithm of their number: it ends when
// all have come. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_PREFLIGHT_VALUES_H
#define WM_COMM_COLL_PREFLIGHT_VALUES_H

#include "comm/comm/comm.h"

#define WM_PREFLIGHT_VALUES 7
#define WM_PREFLIGHT_BYTES 2000 // that a rank publishes at a barrier, at most

typedef struct {
    int64_t values[WM_PREFLIGHT_VALUES];
} wm_preflight_values_t;

// Replaces the numbers by their maxima over all ranks, which call it in the
// same order as their collectives. MPI's errors. At
// a barrier a rank may publish so many bytes beside, which each of the others
// reads, until the next time.
WM_MUST_CHECK int
wm_preflight_values_exchange(wm_comm_t *comm, wm_preflight_values_t *maxima,
                             const void *published, size_t nbytes,
                             wm_error_t *err);

// At a barrier: 1 where a rank has declined (wm_barrier_enter), and nothing
// was exchanged.
WM_MUST_CHECK int
wm_preflight_values_ask(wm_comm_t *comm, wm_preflight_values_t *maxima,
                        const void *published, size_t nbytes, wm_error_t *err);

// The two halves of an exchange, which do not wait: all must have arrived at
// step 0 of the epoch between them.
void
wm_preflight_values_publish(wm_barrier_t *barrier,
                            const wm_preflight_values_t *maxima,
                            const void *published, size_t nbytes);

void
wm_preflight_values_merge(const wm_barrier_t *barrier,
                          wm_preflight_values_t *maxima);

// Returns the bytes that a rank has published beside its numbers.
const void *
wm_preflight_data(const wm_barrier_t *barrier, int rank);

// Returns ours, to be changed before we arrive at a step.
void *
wm_preflight_own_data(const wm_barrier_t *barrier);

#endif
