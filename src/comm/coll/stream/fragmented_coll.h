// SPDX-License-Identifier: BSD-3-Clause
// Collectives on streams in fragments, if the kernels of all ranks cannot run
// at once. Each rank copies fragment after fragment into its symmetric memory,
// and the streams of the others copy or reduce a fragment from there when all
// streams have arrived (comm/coll/stream/symm.h), by the plans of
// comm/coll/direct. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_STREAM_FRAGMENTED_COLL_H
#define WM_COMM_COLL_STREAM_FRAGMENTED_COLL_H

#include "comm/coll/stream/coll_desc.h"
#include "comm/coll/stream/symm.h"

// Sets the number of fragments. Raises if there are too many for a call.
WM_MUST_CHECK int
wm_fragmented_coll_count(wm_symm_t *symm, const wm_coll_desc_t *desc,
                         size_t *fragments, wm_error_t *err);

// Enqueues a call that was begun (wm_symm_begin).
WM_MUST_CHECK int
wm_fragmented_coll_enqueue(wm_symm_t *symm, const wm_coll_desc_t *desc,
                           size_t fragments, wm_error_t *err);

#endif
