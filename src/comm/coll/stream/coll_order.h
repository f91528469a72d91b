// SPDX-License-Identifier: BSD-3-Clause
// The order of a collective on the program's stream: behind the work that uses
// its buffers, and before what uses them later. A buffer of which only the
// device of its work is known is ordered by the program, which has named the
// stream. Any thread; GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_STREAM_COLL_ORDER_H
#define WM_COMM_COLL_STREAM_COLL_ORDER_H

#include "comm/coll/call/coll_engine.h"
#include "cuda/memory.h"

// Makes the stream wait for the work that uses the buffers. `id`: the stream's
// (wm_stream_id; 0: unknown).
WM_MUST_CHECK int
wm_coll_order_before(const wm_coll_t *call, const wm_coll_stream_t *on,
                     uint64_t id, wm_error_t *err);

// Notes the call in the orders of our arrays; not for graphs, which run at any
// time. `passed`: an event recorded behind the call, which orders share; NULL:
// none.
WM_MUST_CHECK int
wm_coll_order_after(const wm_coll_t *call, const wm_coll_stream_t *on,
                    uint64_t id, CUevent passed, wm_error_t *err);

// After the error `code` of an event behind a call that the stream has: waits
// for the stream instead, as other ranks have the call as well. Returns 1, or
// `code` if this is impossible.
WM_MUST_CHECK int
wm_coll_order_wait(const wm_coll_stream_t *on, int code);

// Records an event behind the call, or waits likewise: then returns 1.
WM_MUST_CHECK int
wm_coll_order_record(const wm_coll_stream_t *on, CUevent event,
                     wm_error_t *err);

// Records an event of the pool likewise. Owned by the caller. NULL: the stream
// is captured, or has passed the call.
WM_MUST_CHECK int
wm_coll_order_mark(const wm_coll_stream_t *on, CUevent *passed,
                   wm_error_t *err);

// Frees a block when the stream has passed the call, or when the graph is
// gone. `block` NULL: nothing to do. `passed` NULL: there is no event.
WM_MUST_CHECK int
wm_coll_order_keep(const wm_coll_stream_t *on, CUevent passed,
                   wm_block_t *block, wm_error_t *err);

#endif
