// SPDX-License-Identifier: BSD-3-Clause
// The copies and kernels that a rank enqueues in a phase of its plan. Short
// copies without gaps share a kernel. If one kernel does the whole phase, it
// signals its end. Threads and locks as in direct.h.
#ifndef WM_COMM_COLL_DIRECT_PHASE_H
#define WM_COMM_COLL_DIRECT_PHASE_H

#include "comm/coll/direct/direct_run.h"

// Returns true if all moves of the plan can step over the gaps.
bool
wm_phase_can_move(const wm_direct_run_t *run);

// Enqueues the moves of the current phase after the work that uses the target.
// Sets run->busy and run->signals, also on failure, as some moves may have
// been enqueued.
WM_MUST_CHECK int
wm_phase_enqueue(wm_direct_run_t *run, wm_error_t *err);

#endif
