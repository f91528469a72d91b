// SPDX-License-Identifier: BSD-3-Clause
// NCCL's communicator of a communicator of ours. All ranks make it in one
// call, on which they agree before and after; none waits in NCCL for a rank
// that has died. A parent that does not block is polled, and makes a child
// that does the calls, as a communicator that does not block costs 50 us a
// call. The first calls of the child make its connections, so that no later
// call waits for another rank. Aborted when a rank has died, or if this rank
// cannot take part in a call that others have begun: then no call follows.
#ifndef WM_COMM_COLL_NCCL_NCCL_COMM_H
#define WM_COMM_COLL_NCCL_NCCL_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/coll/nccl/nccl_library.h"
#include "comm/comm/comm.h"

typedef struct wm_nccl_comm {
    struct wm_nccl_comm *next; // in the list of all; engine lock
    wm_comm_t *comm;           // NULL: dropped, but graphs have calls
    int device;
    CUstream stream; // of calls on no stream of the program's
    // Held in calls of `handle`. A thread may be blocked in such a call until
    // the communicator is aborted, which therefore needs no lock.
    pthread_mutex_t lock;
    wm_nccl_handle_t *parent, *handle; // NULL: aborted, or not made; atomic
    // Calls on the program's streams: the end of the last one that is in no
    // graph, their number, and those in graphs that live.
    CUevent last; // of the pool; `lock`
    uint64_t given;
    _Atomic int graphs;
    _Atomic bool breaking, broken; // `failure` is written
    wm_error_t failure;
    bool told;      // some call has raised the failure
    int64_t remote; // when NCCL first told of a lost rank; 0: it has not
} wm_nccl_comm_t;

// Makes it; collective. If one rank fails, all fail. GIL released by the
// caller, engine lock not held.
WM_MUST_CHECK int
wm_nccl_comm_open(wm_comm_t *comm, int device, wm_nccl_comm_t **own,
                  wm_error_t *err);

// Frees it, or, if graphs have calls of it, lets the progress thread free it
// when the last of them is gone. No call is under way.
void
wm_nccl_comm_drop(wm_nccl_comm_t *own);

// Keeps it until the graph is gone into which the stream is captured.
WM_MUST_CHECK int
wm_nccl_comm_keep(wm_nccl_comm_t *own, CUstream stream, wm_error_t *err);

// Notes the end of a call on a stream: an event of the pool, which becomes its
// own. The progress thread looks after the call until then.
void
wm_nccl_comm_note(wm_nccl_comm_t *own, CUevent passed);

// Aborts it: its work ends, with any data, and all other ranks hear of it. The
// first error stays. If a rank has died, *why becomes this cause.
void
wm_nccl_comm_break(wm_nccl_comm_t *own, wm_error_t *why);

// Looks for dead ranks and errors of NCCL's, and breaks the communicator if
// there are any. Returns its error if it is broken. Engine lock held or not.
WM_MUST_CHECK int
wm_nccl_comm_look(wm_nccl_comm_t *own, wm_error_t *err);

// Returns true if a call of NCCL's failed as NCCL has lost a rank, which MPI
// may not have told yet: wm_nccl_comm_look() tells within some seconds.
bool
wm_nccl_comm_lost(const wm_nccl_comm_t *own, const wm_error_t *err);

// Returns the error of a broken communicator, 0 if it is whole.
WM_MUST_CHECK int
wm_nccl_comm_failure(const wm_nccl_comm_t *own, wm_error_t *err);

// Raises, once, an error after which calls on streams have ended: of one
// communicator, or of any.
WM_MUST_CHECK int
wm_nccl_comm_find_failure(wm_nccl_comm_t *own, wm_error_t *err);
WM_MUST_CHECK int
wm_nccl_find_failures(wm_error_t *err);

// Returns true if there is any; any thread.
bool
wm_nccl_any(void);

// Makes the progress thread look after calls on streams, and graphs.
void
wm_nccl_comm_watch(void);

#endif
