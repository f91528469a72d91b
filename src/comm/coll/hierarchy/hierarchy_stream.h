// SPDX-License-Identifier: BSD-3-Clause
// Hierarchical collectives on the program's streams. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H

#include "comm/coll/call/coll_engine.h"

extern const wm_coll_on_stream_t wm_hierarchy_on_stream;

// Opens the engines of each host where all rails have ones of calls on
// streams, once. Collective: also a rank that has failed before takes part.
WM_MUST_CHECK int
wm_hierarchy_streams_open(wm_comm_t *comm, int device, wm_error_t *err);

#endif
