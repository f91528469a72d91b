// SPDX-License-Identifier: BSD-3-Clause
// The levels of a communicator: communicators of some of its ranks, on which a
// hierarchical collective makes collectives of its own. They are made when an
// engine of collectives asks for them. A rank of a level is named by its rank
// in the communicator (wm_comm_name).
#ifndef WM_COMM_COMM_LEVELS_H
#define WM_COMM_COMM_LEVELS_H

#include "comm/engine/op.h"

#define WM_LEVELS 3

// Owned by the communicator, and freed with it. NULL: not made.
typedef struct {
    union {
        wm_comm_t *each[WM_LEVELS];
        struct {
            wm_comm_t *local; // the ranks of this host, in their order
            wm_comm_t *rail;  // of each host the rank with this rank's place
                              // in `local`, in the order of the hosts; the
                              // leaders are a rail
            wm_comm_t *all;   // all ranks, for calls beside the
                              // communicator's own
        };
    };
    bool open;     // they can be used; engine lock
    int code;      // below 0: they could not be made
    int streams;   // 1: both have engines of calls on streams; -1: they have
                   // not; 0: not known yet
    bool blocking; // so all ranks make blocking calls on streams of ours
    bool given;    // calls were given to streams
    bool told;     // that a rank died was raised after such calls
} wm_levels_t;

// Makes the levels, unless they are made. Collective: an engine calls it when
// it is opened (coll_engine.h), as all ranks then are in this call. If one
// rank fails, all fail, also the next time. `local` has a barrier, if the
// ranks of the host see each other and are at most WM_BARRIER_RANKS. GIL
// released by the caller, engine lock not held.
WM_MUST_CHECK int
wm_levels_open(wm_comm_t *comm, wm_error_t *err);

#endif
