// SPDX-License-Identifier: BSD-3-Clause
// The preflight: an exchange of all ranks before a collective of ours, for an
// intercommunicator of both groups. Ranks learn which call each is in, and if
// one has failed. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_PREFLIGHT_H
#define WM_COMM_COLL_DIRECT_PREFLIGHT_H

#include "comm/coll/call/coll_table.h"
#include "comm/coll/call/preflight_values.h"
#include "comm/coll/direct/direct.h"

typedef struct {
    int code;            // error of this rank so far, or 0
    wm_coll_kind_t call; // must be alike on all ranks
    bool notices;        // it has posted notices; on return, some rank has
    unsigned all; // bits, such as of the engines that serve this rank; on
                  // return, those that all ranks have
    // Data that this rank publishes if it has any such bit, and their bytes;
    // or NULL.
    const wm_direct_t *direct;
    size_t nbytes;
} wm_preflight_t;

// The two halves of a preflight at a barrier: before all have arrived at step
// 0 of the epoch, and after.
void
wm_preflight_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_preflight_t *preflight);

WM_MUST_CHECK int
wm_preflight_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_preflight_t *preflight, wm_error_t *err);

// Exchanges at a barrier. Returns 1, and exchanges nothing, if a rank
// declines.
WM_MUST_CHECK int
wm_preflight_or_decline(wm_comm_t *comm, wm_preflight_t *preflight,
                        wm_error_t *err);

// Exchanges in any communicator. Raises on all ranks if one has failed.
WM_MUST_CHECK int
wm_preflight_run(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err);

#endif
