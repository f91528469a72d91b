// SPDX-License-Identifier: BSD-3-Clause
// Copies without gaps of the blocks of a collective on a stream, where its
// algorithm cannot walk the gaps.
#ifndef WM_COMM_COLL_STREAM_PACKED_COLL_H
#define WM_COMM_COLL_STREAM_PACKED_COLL_H

#include "comm/coll/stream/coll_desc.h"
#include "cuda/memory.h"

// Packs the send data if they have gaps, and lets `desc` point to the copy.
// The copy is in use until the stream has passed the call; for a graph, as
// long as that may run. *copy NULL: no copy is needed. *copy may be set on
// failure as well.
WM_MUST_CHECK int
wm_packed_coll_open(wm_coll_desc_t *desc, wm_block_t **copy, wm_error_t *err);

// Unpacks the received data.
WM_MUST_CHECK int
wm_packed_coll_unpack(const wm_coll_desc_t *desc, wm_error_t *err);

#endif
