// SPDX-License-Identifier: BSD-3-Clause
// Hierarchical collectives on the program's streams. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H

#include "comm/coll/call/coll_engine.h"

extern const wm_coll_on_stream_t wm_hierarchy_on_stream;

// Opens the kernels of each host where all rails have NCCL, once. Collective:
// also a rank that has failed before takes part.
WM_MUST_CHECK int
wm_hierarchy_streams_open(wm_comm_t *comm, int device, wm_error_t *err);

// Returns true if a communicator may have such calls under way; any thread.
bool
wm_hierarchy_any_on_streams(void);

// Raises, once for each communicator, that a rank of it has died: called after
// a wait for a stream. A rank that no level of ours has may have died, and
// those of our levels then have given us garbage.
WM_MUST_CHECK int
wm_hierarchy_find_failures(wm_error_t *err);

#endif
