// SPDX-License-Identifier: BSD-3-Clause
// Data that ranks exchange on the host when a collective on a stream is
// captured into a graph. A replay checks nothing: if ranks replay different
// calls, their streams wait for ever. GIL released by the caller, engine lock
// not held.
#ifndef WM_COMM_COLL_STREAM_CAPTURE_H
#define WM_COMM_COLL_STREAM_CAPTURE_H

#include "comm/coll/direct/preflight.h"

typedef struct {
    int kind;       // wm_coll_kind_t
    bool first;     // the first call of its capture
    uint64_t asked; // hash of the arguments that must be alike on all ranks
    uint64_t fragments;
} wm_captured_t;

// Exchanges the call of this rank; `code` is 0 or its error, then `err` is
// written. Raises on all ranks if one has failed or if the calls differ. On
// success `fragments` is the maximum over all ranks.
WM_MUST_CHECK int
wm_capture_begin(wm_comm_t *comm, wm_captured_t *captured, int code,
                 wm_error_t *err);

// Ends the exchange after the call is in the graph. Raises on all ranks if one
// could not capture the call.
WM_MUST_CHECK int
wm_capture_end(wm_comm_t *comm, int code, wm_error_t *err);

#endif
