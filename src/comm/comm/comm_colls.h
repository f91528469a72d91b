// SPDX-License-Identifier: BSD-3-Clause
// A communicator's state for its engines of collectives, which are above it
// (coll/run/coll_engines.h).
#ifndef WM_COMM_COMM_COMM_COLLS_H
#define WM_COMM_COMM_COMM_COLLS_H

#include <cuda.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

// The last call on a stream, if several engines do such calls: one for those
// in no graph, one for captured ones (coll/run/coll_on_stream.c). This rank's
// alone.
typedef struct {
    CUevent end; // NULL: none
    int device;
    uint64_t stream, capture;
} wm_comm_last_t;

#define WM_COLL_ENGINES 8 // most engines of collectives, without MPI

// The engines of collectives, each with a bit, of a `whole`
// (coll/run/coll_engines.h). All but `state`, `why` and `last` is the same on
// all ranks.
typedef struct {
    bool known;       // `span` is filled
    unsigned span;    // engines that can serve such a communicator
    unsigned opened;  // of those that are opened: the opened ones
    unsigned closed;  // that could not be opened on some rank
    unsigned refused; // forms whose last call MPI has refused (coll.h)
    uint32_t of_host; // kinds whose memory is the host's (coll_require.h)
    int device;       // of the engines between hosts; -1: none
    void *state[WM_COLL_ENGINES];  // of opened ones, by number
    char *why[WM_COLL_ENGINES];    // of closed ones, on this rank; or NULL
    struct wm_coll_class *classes; // NULL: none (coll_class.h)
    struct wm_stream_calls *stream_calls; // NULL: none (stream_calls.h)
    MPI_Comm *ordered; // of calls that MPI begins in turn; NULL: `data`
    wm_comm_last_t last[2];
} wm_comm_colls_t;

#endif
