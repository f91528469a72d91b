// SPDX-License-Identifier: BSD-3-Clause
// A collective of a rank whose engine was chosen before, and takes no such
// memory: contiguous memory of ours stands in for the buffers. Messages of the
// rank to itself move the data there and back, so memory of any kind, with any
// gaps, will do. The call itself is an operation within the operation.
#ifndef WM_COMM_COLL_RUN_MOVED_COLL_H
#define WM_COMM_COLL_RUN_MOVED_COLL_H

#include "comm/coll/direct/coll_op.h"

typedef struct wm_moved_coll wm_moved_coll_t;

// Begins to move the data of a call, whose engine was chosen by its bit, and
// sets op->moved; on an error sets none. Engine lock not held.
WM_MUST_CHECK int
wm_moved_coll_begin(wm_coll_op_t *op, unsigned bit, wm_error_t *err);

// Steps the call, from its start on.
WM_MUST_CHECK wm_coll_result_t
wm_moved_coll_step(wm_coll_op_t *op, bool *waits, wm_error_t *err);

// Frees op->moved. A blocking call waits for messages that use the caller's
// memory.
void
wm_moved_coll_drop(wm_coll_op_t *op);

#endif
