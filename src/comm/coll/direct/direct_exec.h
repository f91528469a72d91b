// SPDX-License-Identifier: BSD-3-Clause
// The run of a plan, in a collective from GPU to GPU (direct.h): a set of
// transfers, with a step of the ranks' barrier after each phase. At the end
// all know if one has failed. Locks are noted at each function.
#ifndef WM_COMM_COLL_DIRECT_DIRECT_EXEC_H
#define WM_COMM_COLL_DIRECT_DIRECT_EXEC_H

#include "comm/coll/direct/direct.h"
#include "comm/transfer/transfer_set.h"

// Steps of an epoch, at most: two before the phases, then one for each.
#define WM_DIRECT_STEPS (2 + WM_PLAN_PHASES)

// A plan that is being followed. The call owns the plan, and `direct` the
// memory, its users and the signal; the run owns the mappings of the set.
typedef struct {
    wm_direct_t *direct;
    const wm_plan_t *plan;
    wm_transfer_set_t set;
    wm_error_t why; // error that stops this rank; code 0: none
    bool unmapped;  // it could not map another rank's memory
    bool busy;      // our stream is busy; else we wait for other ranks
    bool waits;     // all ranks must be ready before one writes
    bool gapped;    // some send data are read with their gaps
    bool ended;
    int phase; // current phase; -1: before the first
    int result;
    wm_transfer_region_t regions[WM_PLAN_REGIONS];
} wm_direct_exec_t;

// Starts the run. `wrong` is an error that only this rank has found (code 0:
// none). `fuses`: a round of the engine starts it, and it may share kernels.
// Engine lock held.
void
wm_direct_start(wm_direct_exec_t *run, wm_direct_t *direct,
                const wm_plan_t *plan, wm_reduce_type_t type,
                wm_reduce_op_t op, bool fuses, const wm_error_t *wrong);

// Lets a run rest after its plan was followed to the end: releases the
// streams, and allows to close the mappings, but remembers these. Returns
// false if the run cannot be restarted. Engine lock held.
WM_MUST_CHECK bool
wm_direct_rest(wm_direct_exec_t *run);

// Uses all mappings again, after wm_direct_reopen(). Returns false, and uses
// none, if one has been closed. Engine lock held.
WM_MUST_CHECK bool
wm_direct_resume(wm_direct_exec_t *run);

// Restarts the run after wm_direct_resume(), at `direct->barrier`, where all
// ranks have begun another epoch.
void
wm_direct_restart(wm_direct_exec_t *run);

// wm_direct_look() returns true when the event that the run waits for has
// come. Then wm_direct_go_on() goes on, and returns true at the end of the
// plan. Neither waits. With or without the engine lock.
bool
wm_direct_look(wm_direct_exec_t *run);

bool
wm_direct_go_on(wm_direct_exec_t *run);

// Returns the result, which is the same on all ranks: 0; 1 if a rank could not
// map another's memory, then nothing was received and the call must go through
// the host; or an error.
WM_MUST_CHECK int
wm_direct_finish(const wm_direct_exec_t *run, wm_error_t *err);

// Releases the mappings of a run that was started. Engine lock held.
void
wm_direct_unmap(wm_direct_exec_t *run);

#endif
