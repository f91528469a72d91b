// SPDX-License-Identifier: BSD-3-Clause
// Updates of memory by the engine of its rank: by the kernel of atomic
// updates, which mapped origins use as well; by reductions on the target's
// stream, for elements that no device updates at once; by the CPU in host
// memory. Engine lock held.
#ifndef WM_COMM_RMA_TARGET_UPDATE_H
#define WM_COMM_RMA_TARGET_UPDATE_H

#include "array/reduce.h"
#include "comm/message/pattern.h"
#include "comm/rma/target.h"

// An update: the target's memory, without gaps or with those of `pattern`; and
// memory of ours of equal size, without gaps, that CPU and device reach.
typedef struct {
    const wm_pointer_t *memory; // of the target
    char *dst;
    const wm_pattern_t *pattern; // with addresses; NULL: no gaps
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    const char *src;
    const char *compare; // NULL: all elements are updated
    char *fetched;       // NULL: not wanted
    size_t nbytes;
} wm_target_update_t;

// Returns true if the update is none of the kernel of atomic updates: it needs
// the right to update alone.
bool
wm_target_update_is_alone(const wm_target_update_t *update);

// Enqueues the update on the stream of the target's device; does it at once in
// host memory.
WM_MUST_CHECK int
wm_target_update(const wm_target_update_t *update, CUstream stream,
                 wm_error_t *err);

#endif
