// SPDX-License-Identifier: BSD-3-Clause
// The preflight: what all ranks, of an intercommunicator those of both groups,
// exchange before a collective of ours is begun: which call it is, and that
// none has failed. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_PREFLIGHT_H
#define WM_COMM_COLL_PREFLIGHT_H

#include "comm/coll/coll_table.h"
#include "comm/coll/preflight_values.h"
#include "comm/coll/direct.h"

typedef struct {
    int code;            // of what this rank has done so far
    wm_call_kind_t call; // what all must be in
    bool stages;  // whether this rank does; afterwards, whether any does
    bool notices; // likewise: whether any has posted some
    // NULL, or what this rank publishes, so many bytes, if it is capable.
    const wm_direct_t *direct;
    size_t nbytes;
    bool stays; // afterwards: all are capable
    bool symm;  // whether it can go by symm_coll; afterwards: of all ranks
} wm_preflight_t;

// At a barrier, before all have arrived at step 0 of the epoch, and after.
void
wm_preflight_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_preflight_t *preflight);

WM_MUST_CHECK int
wm_preflight_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_preflight_t *preflight, wm_error_t *err);

// At a barrier: 1 where a rank declines, and nothing is exchanged.
WM_MUST_CHECK int
wm_preflight_ask(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err);

// Where one rank failed, all raise.
WM_MUST_CHECK int
wm_preflight_run(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err);

#endif
