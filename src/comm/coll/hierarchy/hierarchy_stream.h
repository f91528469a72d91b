// SPDX-License-Identifier: BSD-3-Clause
// Hierarchical collectives on the program's streams. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_STREAM_H

#include "comm/coll/call/coll_engine.h"

extern const wm_coll_on_stream_t wm_hierarchy_on_stream;

#endif
