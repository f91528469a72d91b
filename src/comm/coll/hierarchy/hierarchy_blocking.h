// SPDX-License-Identifier: BSD-3-Clause
// A blocking call where all rails have engines of calls on streams: the call
// goes onto a stream of ours as one on the program's stream does, and the
// caller waits once, for its end. A rank that fails tells the others as there.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_BLOCKING_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_BLOCKING_H

#include "comm/coll/direct/coll_op.h"

// Returns true if a call goes so: all ranks alike.
bool
wm_hierarchy_blocking_serves(const wm_coll_op_t *op);

// The row's functions of such a call (coll_engine.h).
WM_MUST_CHECK wm_coll_result_t
wm_hierarchy_blocking_start(wm_coll_op_t *op, wm_error_t *err);

WM_MUST_CHECK wm_coll_result_t
wm_hierarchy_blocking_step(wm_coll_op_t *op, bool *waits, wm_error_t *err);

void
wm_hierarchy_blocking_drop(wm_coll_op_t *op);

#endif
