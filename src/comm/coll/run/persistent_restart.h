// SPDX-License-Identifier: BSD-3-Clause
// The starts of one persistent collective. After a start that went from GPU to
// GPU, each rank keeps its call. Before the next start the ranks publish, in
// bank 0 of the barrier, if they restart the kept call; then they need no vote
// and no preflight. If one rank does not, all ranks vote again
// (nonblocking.h). Engine lock held, except where noted.
#ifndef WM_COMM_COLL_RUN_PERSISTENT_RESTART_H
#define WM_COMM_COLL_RUN_PERSISTENT_RESTART_H

#include "comm/coll/run/coll.h"

struct wm_nonblocking_call; // nonblocking_call.h
struct wm_nonblocking_op;

// One for each communicator; zeroed: its calls are not persistent.
typedef struct {
    bool repeats;
    // The last start went from GPU to GPU, on all ranks alike. So ranks begin
    // the next start by publishing if they restart.
    bool went;
    struct wm_nonblocking_call *kept; // that call, if this rank can restart it
} wm_persistent_restart_t;

// Begins a start. Returns true if this rank restarts the kept call, and has
// begun. Publishes if it does not. Lock not held.
bool
wm_persistent_restart_begin(wm_comm_t *comm, const wm_coll_t *asked,
                            const wm_buffer_t *kept, wm_op_t **op);

// Publishes that this rank does not restart the kept call; the others wait for
// this. Lock not held.
void
wm_persistent_restart_differ(wm_comm_t *comm);

// The steps of a restart (nonblocking_call.h). They return true if it has
// ended.
bool
wm_persistent_restart_come(struct wm_nonblocking_op *op, bool *waits);
bool
wm_persistent_restart_arrive(struct wm_nonblocking_op *op, bool *waits);

// Notes that a call has ended after all ranks followed its plan.
void
wm_persistent_restart_note(struct wm_nonblocking_call *call);

// Keeps the call for the next start, after wm_persistent_restart_note().
// Returns true if it is kept.
bool
wm_persistent_restart_keep(struct wm_nonblocking_call *call);

// Frees the kept call. Lock not held.
void
wm_persistent_restart_drop(wm_persistent_restart_t *restart);

#endif
