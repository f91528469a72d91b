// SPDX-License-Identifier: BSD-3-Clause
// Collectives on the caller's stream, by the first engine that serves the
// communicator's streams. No call waits on the host, except the first one of a
// communicator, and those for which the engine says so (stream_coll.h). GIL
// released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_RUN_COLL_ON_STREAM_H
#define WM_COMM_COLL_RUN_COLL_ON_STREAM_H

#include "comm/coll/call/coll_engine.h"

// Returns true if an engine does such calls on streams of this communicator.
bool
wm_coll_on_stream_serves(wm_comm_t *comm, wm_coll_kind_t kind);

// Enqueues a call. `call` is NULL if this rank's arguments are wrong and `err`
// is written; then the others hear of it. The caller keeps the buffers; they
// are in use until the stream has passed the call. Also returns errors of
// earlier calls.
WM_MUST_CHECK int
wm_coll_on_stream_call(wm_comm_t *comm, wm_coll_kind_t kind,
                       const wm_coll_t *call, int device, CUstream stream,
                       wm_error_t *err);

// Enqueues a call likewise, and makes an operation that ends when the stream
// has passed the call; one reference is the caller's. On success takes over
// `kept`, and releases it at the end. Fails if the stream is being captured.
WM_MUST_CHECK int
wm_coll_on_stream_begin(wm_comm_t *comm, wm_coll_kind_t kind,
                        const wm_coll_t *call, int device, CUstream stream,
                        wm_buffer_t *kept, wm_op_t **op, wm_error_t *err);

// Gives a call to a stream by an open engine, between hosts, behind the calls
// on streams before it, which are settled (stream_calls.h). `call` NULL: this
// rank's is wrong, and `err` is written. The stream is not captured.
WM_MUST_CHECK int
wm_coll_on_stream_give(wm_comm_t *comm, const wm_coll_engine_t *engine,
                       const wm_coll_t *call, int device, CUstream stream,
                       wm_error_t *err);

// See wm_coll_on_stream_t.find_failure, of all engines.
WM_MUST_CHECK int
wm_coll_on_stream_find_failure(wm_comm_t *comm, wm_error_t *err);

// See wm_coll_on_stream_t.any and find_failures.
bool
wm_coll_on_stream_any(void);
WM_MUST_CHECK int
wm_coll_on_stream_find_failures(wm_error_t *err);

#endif
