// SPDX-License-Identifier: BSD-3-Clause
// Copies without gaps of what collectives on a stream have with gaps, or in
// several blocks for a rank: packed and unpacked by the stream. GIL not
// needed.
#ifndef WM_COMM_COLL_PACKED_H
#define WM_COMM_COLL_PACKED_H

#include "comm/coll/coll_desc.h"

// Where there are gaps: packs what is sent, and has `desc` point to the copy,
// which is in use until the stream has passed, or, of a graph, as long as that
// may run. *copy NULL: there are none. On failure there may be one as well.
WM_MUST_CHECK int
wm_packed_open(wm_coll_desc_t *desc, wm_block_t **copy, wm_error_t *err);

// Unpacks what was received.
WM_MUST_CHECK int
wm_packed_unpack(const wm_coll_desc_t *desc, wm_error_t *err);

#endif
