// SPDX-License-Identifier: BSD-3-Clause
// Stream-ordered collectives, as NCCL's: a call is enqueued on a stream and
// returns at once. All ranks make their calls in the same order. No call waits
// on the host, except the first one of a communicator, and the first one that
// is captured, which are barriers of all ranks, and the one that recovers from
// a failure. If each rank has a GPU of its own, a call is one kernel on each
// (comm/coll/stream/kernel_coll.h). Else each rank copies fragment after
// fragment into its symmetric memory, and the others copy or reduce a fragment
// from there when all streams have arrived (comm/coll/stream/symm.h). A stream
// that is being captured takes the call into its graph, and the other ranks do
// not hear of it. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_STREAM_STREAM_COLL_H
#define WM_COMM_COLL_STREAM_STREAM_COLL_H

#include "comm/coll/call/coll_engine.h"

// Returns true if calls through this symmetric memory are refused, as it lies
// in host memory (require.h). All ranks alike.
bool
wm_stream_coll_stages(const wm_comm_t *comm, const wm_symm_t *symm);

// Enqueues a call of a communicator on one host, whose symmetric memory is
// made (wm_symm_make); of calls that are captured, the first one makes it.
// `call` is NULL if this rank's arguments are wrong and `err` is written; then
// this is published. The caller keeps the buffers; they are in use until the
// stream has passed the call. Also returns errors of earlier calls.
WM_MUST_CHECK int
wm_stream_coll_call(wm_comm_t *comm, const wm_coll_t *call,
                    const wm_coll_stream_t *on, wm_error_t *err);

#endif
