// SPDX-License-Identifier: BSD-3-Clause
// Looks after calls on streams between hosts (call/stream_calls.h), in the
// progress thread: a stream tells of no rank that has died, failed, or refused
// a call.
#ifndef WM_COMM_COLL_RUN_STREAM_WATCH_H
#define WM_COMM_COLL_RUN_STREAM_WATCH_H

#include "comm/coll/call/coll_engine.h"

// Marks the begin of a call on a stream: from then on the progress thread
// looks, until the stream has passed a mark.
void
wm_stream_watch_begin(wm_comm_t *comm);

// Ends such a call, which is marked if the engine's own calls do not tell
// (`marks`). `code` below 0: it has failed with `err`: if other ranks may
// already wait for this one's part (on->given), the communicator has. Returns
// the code, or an error of its own.
WM_MUST_CHECK int
wm_stream_watch_end(wm_comm_t *comm, const wm_coll_stream_t *on, bool marks,
                    int code, wm_error_t *err);

// Waits until a call that this rank has refused is settled. Returns the error
// of a communicator that has failed.
WM_MUST_CHECK int
wm_stream_watch_await(wm_comm_t *comm, wm_error_t *err);

#endif
