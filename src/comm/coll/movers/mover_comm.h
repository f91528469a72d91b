// SPDX-License-Identifier: BSD-3-Clause
// A library's communicator (movers.h) of a communicator of ours, with its
// calls on streams, graphs and failures. Its engine opens it, in one call of
// all ranks. Aborted when a rank has died, or if this rank cannot take part in
// a call that others have begun: then no call follows.
#ifndef WM_COMM_COLL_MOVERS_MOVER_COMM_H
#define WM_COMM_COLL_MOVERS_MOVER_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/coll/movers/movers.h"
#include "comm/comm/comm.h"

typedef struct wm_mover_comm {
    struct wm_mover_comm *next; // in the list of all; engine lock
    wm_comm_t *comm;            // NULL: dropped, but graphs have calls
    const wm_movers_t *movers;  // static
    int device;
    CUstream stream; // of calls on no stream of the program's
    // Held in calls of `handle`. A thread may be blocked in such a call until
    // the communicator is aborted, which therefore needs no lock.
    pthread_mutex_t lock;
    void *parent, *handle; // NULL: aborted, or not made; atomic
    // Calls on the program's streams: the end of the last one that is in no
    // graph, their number, and those in graphs that live.
    CUevent last; // of the pool; `lock`
    uint64_t given;
    _Atomic int graphs;
    _Atomic bool breaking, broken; // `failure` is written
    wm_error_t failure;
    bool told;      // some call has raised the failure
    int64_t remote; // when the library told of a lost rank; 0: it has not
} wm_mover_comm_t;

// Returns a new one without handles, which the engine that opens it sets; NULL
// and the error.
wm_mover_comm_t *
wm_mover_comm_new(wm_comm_t *comm, const wm_movers_t *movers, int device,
                  wm_error_t *err);

// All ranks have opened it: from now on the progress thread looks after it.
void
wm_mover_comm_add(wm_mover_comm_t *own);

// Frees one that was not added, after its handles. Before that, aborts them,
// also while another thread is in a call.
void
wm_mover_comm_free(wm_mover_comm_t *own);
void
wm_mover_comm_abort(wm_mover_comm_t *own);

// Frees it, or, if graphs have calls of it, or something on a stream may wait
// for another rank, lets a later wait or call of the program do so. No call is
// under way.
void
wm_mover_comm_drop(wm_mover_comm_t *own);

// Keeps it until the graph is gone into which the stream is captured.
WM_MUST_CHECK int
wm_mover_comm_keep(wm_mover_comm_t *own, CUstream stream, wm_error_t *err);

// Notes the end of a call on a stream: an event of the pool, which becomes its
// own. The progress thread looks after the call until then.
void
wm_mover_comm_note(wm_mover_comm_t *own, CUevent passed);

// Begins to give a stream work that may wait for other ranks, until it is
// noted, or `stream` has it: no memory is freed meanwhile. Returns false if a
// thread frees memory just now: begin again when it has, which waits for no
// other rank.
WM_MUST_CHECK bool
wm_mover_comm_begin_giving(void);
void
wm_mover_comm_end_giving(void);

// Aborts it: its work ends, with any data, and all other ranks hear of it. The
// first error stays. If a rank has died, *why becomes this cause.
void
wm_mover_comm_break(wm_mover_comm_t *own, wm_error_t *why);

// Looks for dead ranks and errors of the library's, and breaks the
// communicator if there are any. Returns its error if it is broken. Engine
// lock held or not.
WM_MUST_CHECK int
wm_mover_comm_look(wm_mover_comm_t *own, wm_error_t *err);

// Returns true if a call failed as the library has lost a rank, which MPI may
// not have told yet: wm_mover_comm_look() tells within some seconds.
bool
wm_mover_comm_lost(const wm_mover_comm_t *own, const wm_error_t *err);

// Returns the error of a broken communicator, 0 if it is whole.
WM_MUST_CHECK int
wm_mover_comm_failure(const wm_mover_comm_t *own, wm_error_t *err);

// Raises, once, an error after which calls on streams have ended: of one
// communicator, or of any.
WM_MUST_CHECK int
wm_mover_comm_find_failure(wm_mover_comm_t *own, wm_error_t *err);
WM_MUST_CHECK int
wm_mover_find_failures(wm_error_t *err);

// Returns true if there is any; any thread.
bool
wm_mover_any(void);

// Makes the progress thread look after calls on streams, and graphs.
void
wm_mover_comm_watch(void);

#endif
