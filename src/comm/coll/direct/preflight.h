// SPDX-License-Identifier: BSD-3-Clause
// The preflight: a small allreduce of all ranks before a collective of ours,
// for an intercommunicator of both groups. Ranks learn which call each is in,
// if one has failed, and the bits that all have, such as of the engines that
// serve them. Ranks on one host use their barrier (comm/node/barrier.h), where
// each may publish data as well. Others send messages, in log2(ranks) rounds.
// All ranks call it in the order of their collectives. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_PREFLIGHT_H
#define WM_COMM_COLL_DIRECT_PREFLIGHT_H

#include "comm/coll/call/coll_table.h"
#include "comm/comm/comm.h"

#define WM_PREFLIGHT_VALUES 5
#define WM_PREFLIGHT_BYTES 2000 // most bytes that a rank publishes

typedef struct {
    int code;            // error of this rank so far, or 0
    wm_coll_kind_t call; // must be alike on all ranks
    bool notices;        // it has posted notices; on return, some rank has
    bool on_device;      // it has GPU memory in the call; likewise
    unsigned all;        // bits; on return, those that all ranks have
    // Data that this rank publishes if it has any such bit, and their bytes;
    // or NULL.
    const void *data;
    size_t nbytes;
} wm_preflight_t;

// The numbers that ranks exchange: each rank gets the maximum of each.
typedef struct {
    int64_t values[WM_PREFLIGHT_VALUES];
    uint64_t all; // bits; each rank gets those that all have
} wm_preflight_values_t;

// Exchanges in any communicator. Raises on all ranks if one has failed.
WM_MUST_CHECK int
wm_preflight_run(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err);

// The same, if only `code` is to be told.
WM_MUST_CHECK int
wm_preflight_tell(wm_comm_t *comm, wm_coll_kind_t call, int code,
                  wm_error_t *err);

// The steps of wm_preflight_run() on one host, which do not wait.
// wm_preflight_look() returns 1 when it has ended, 0 if not yet, or an error.
// A rank that does not look to the end leaves.
void
wm_preflight_begin(wm_comm_t *comm, const wm_preflight_t *preflight);

WM_MUST_CHECK int
wm_preflight_look(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err);

void
wm_preflight_leave(const wm_comm_t *comm);

// Exchanges at a barrier. Returns 1, and exchanges nothing, if a rank declines
// (wm_barrier_enter).
WM_MUST_CHECK int
wm_preflight_or_decline(wm_comm_t *comm, wm_preflight_t *preflight,
                        wm_error_t *err);

// Publishes data at a barrier, after a preflight, and waits until all have.
WM_MUST_CHECK int
wm_preflight_share(wm_comm_t *comm, const void *data, size_t nbytes,
                   wm_error_t *err);

// The two halves of a preflight at a barrier, which do not wait: before all
// have arrived at step 0 of the epoch, and after.
void
wm_preflight_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_preflight_t *preflight);

WM_MUST_CHECK int
wm_preflight_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_preflight_t *preflight, wm_error_t *err);

// Returns the data that a rank has published; borrowed, until the next
// exchange.
const void *
wm_preflight_data(const wm_barrier_t *barrier, int rank);

// Returns our published data; we may change them before we arrive at a step.
void *
wm_preflight_own_data(const wm_barrier_t *barrier);

#endif
