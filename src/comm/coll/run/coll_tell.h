// SPDX-License-Identifier: BSD-3-Clause
// Tells which engine does a collective, for the user: wm.transport(); and why
// none does. By what this rank knows; no rank is asked.
#ifndef WM_COMM_COLL_RUN_COLL_TELL_H
#define WM_COMM_COLL_RUN_COLL_TELL_H

#include "comm/coll/run/coll_engines.h"

typedef struct {
    const char *name;  // of the engine; borrowed, static
    char reason[1024]; // also why those before it do not serve
} wm_coll_told_t;

// A blocking collective with such memory on all ranks. Of a reduction, one
// that GPUs compute.
typedef struct {
    wm_coll_kind_t kind;
    bool on_device;
    size_t nbytes; // of a block; SIZE_MAX: many
} wm_coll_asked_t;

// Takes the lock of the progress engine.
wm_coll_told_t
wm_coll_tell(wm_comm_t *comm, const wm_coll_asked_t *asked);

// Why no engine but MPI does calls of a kind.
typedef struct {
    bool may;       // an engine would do them, if it served
    char text[300]; // of each engine that spans the communicator; or that
                    // nothing speaks against one
} wm_coll_lacking_t;

// on_stream: calls on streams.
wm_coll_lacking_t
wm_coll_tell_lacking(wm_comm_t *comm, wm_coll_kind_t kind, bool on_stream);

#endif
