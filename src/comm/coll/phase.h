// SPDX-License-Identifier: BSD-3-Clause
// What a rank enqueues in a phase of its plan. Short copies without gaps share
// a kernel; where one kernel is all, it signals its end. As direct.h
// of threads and locks.
#ifndef WM_COMM_COLL_PHASE_H
#define WM_COMM_COLL_PHASE_H

#include "comm/coll/direct_run.h"

// Whether gaps can be stepped over in all moves of the plan.
bool
wm_phase_can_move(const wm_direct_run_t *run);

// Enqueues the moves of this phase behind what uses the target; sets what the
// run notes of them, also where it fails: nothing is to be on its way then.
WM_MUST_CHECK int
wm_phase_enqueue(wm_direct_run_t *run, wm_error_t *err);

#endif
