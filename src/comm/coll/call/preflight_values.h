// SPDX-License-Identifier: BSD-3-Clause
// The allreduce of a preflight: all ranks of an intracommunicator exchange
// numbers before a collective, and each gets the maximum of each number, and
// the engines that serve all ranks. Ranks on one host use their barrier
// (comm/node/barrier.h). Others send messages, in log2(ranks) rounds. It ends
// when all ranks have come. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_CALL_PREFLIGHT_VALUES_H
#define WM_COMM_COLL_CALL_PREFLIGHT_VALUES_H

#include "comm/comm/comm.h"

#define WM_PREFLIGHT_VALUES 4
#define WM_PREFLIGHT_BYTES 2000 // most bytes that a rank publishes there

typedef struct {
    int64_t values[WM_PREFLIGHT_VALUES];
    uint64_t all; // bits; each rank gets those that all have
} wm_preflight_values_t;

// Replaces the numbers by their maxima over all ranks. All ranks call it in
// the order of their collectives. Returns MPI's errors. At a barrier a rank
// may publish `nbytes` more bytes, which the others can read until the next
// exchange.
WM_MUST_CHECK int
wm_preflight_values_exchange(wm_comm_t *comm, wm_preflight_values_t *maxima,
                             const void *published, size_t nbytes,
                             wm_error_t *err);

// Exchanges at a barrier. Returns 1, and exchanges nothing, if a rank has
// declined (wm_barrier_enter).
WM_MUST_CHECK int
wm_preflight_values_ask(wm_comm_t *comm, wm_preflight_values_t *maxima,
                        const void *published, size_t nbytes, wm_error_t *err);

// The two halves of an exchange; they do not wait. Between them all ranks must
// have arrived at step 0 of the epoch.
void
wm_preflight_values_publish(wm_barrier_t *barrier,
                            const wm_preflight_values_t *maxima,
                            const void *published, size_t nbytes);

void
wm_preflight_values_merge(const wm_barrier_t *barrier,
                          wm_preflight_values_t *maxima);

// Returns the bytes that a rank has published after its numbers; borrowed.
const void *
wm_preflight_data(const wm_barrier_t *barrier, int rank);

// Returns our published bytes; we may change them before we arrive at a step.
void *
wm_preflight_own_data(const wm_barrier_t *barrier);

#endif
