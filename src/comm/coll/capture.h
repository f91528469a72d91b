// SPDX-License-Identifier: BSD-3-Clause
// What the ranks exchange, on the host, when a collective on a stream
// is captured into a graph: a replay checks nothing, and where ranks replay
// what differs their streams wait for ever. GIL released by the caller, engine
// lock not held.
#ifndef WM_COMM_COLL_CAPTURE_H
#define WM_COMM_COLL_CAPTURE_H

#include "comm/coll/preflight.h"

typedef struct {
    int kind;       // of the call
    bool first;     // of its capture
    uint64_t asked; // what all must ask for alike, as a number
    uint64_t fragments;
} wm_captured_t;

// Of this rank; where it has failed (`code`, `err` is written) all raise, as
// they do where they differ. Afterwards `fragments` are those of the rank that
// has most.
WM_MUST_CHECK int
wm_capture_begin(wm_comm_t *comm, wm_captured_t *captured, int code,
                 wm_error_t *err);

// The call is in the graph: all raise where one could not capture it.
WM_MUST_CHECK int
wm_capture_end(wm_comm_t *comm, int code, wm_error_t *err);

#endif
