// SPDX-License-Identifier: BSD-3-Clause
// One nonblocking collective, from its beginning to its end: the states that
// the engine steps it through (nonblocking.h, which begins it;
// persistent_restart.h, of what is persistent). Engine lock held, but where a
// call is made.
#ifndef WM_COMM_COLL_NONBLOCKING_CALL_H
#define WM_COMM_COLL_NONBLOCKING_CALL_H

#include "comm/coll/persistent_restart.h"
#include "comm/coll/by_mpi.h"
#include "comm/coll/direct_run.h"
#include "comm/coll/deferred_votes.h"
#include "comm/coll/participant.h"
#include "comm/coll/preflight.h"
#include "comm/coll/turn.h"

typedef enum {
    WM_NONBLOCKING_RESTART,  // as the start before: what it sends is not ready
    WM_NONBLOCKING_ALIKE,    // for all to have published whether it does
    WM_NONBLOCKING_AHEAD,    // of others, so far that it cannot vote
    WM_NONBLOCKING_VOTED,    // for the decision who does it
    WM_NONBLOCKING_GPUS,     // they do: it waits for its bank, and until it's
                             // ready
    WM_NONBLOCKING_ARRIVING, // for all to have published what they give
    WM_NONBLOCKING_FOLLOWING, // its plan
    WM_NONBLOCKING_MPIS,      // MPI does: it waits for its turn
    WM_NONBLOCKING_FETCHING,  // fills the staging copies
    WM_NONBLOCKING_POSTED,    // with MPI
    WM_NONBLOCKING_STORING,   // copies back
} wm_nonblocking_state_t;

// Large: what a plan and a run hold is left as it is until there is one.
typedef struct wm_nonblocking_call {
    wm_turn_t turn; // first
    wm_nonblocking_t *nonblocking;
    wm_nonblocking_state_t state;
    wm_participant_t participant;
    wm_preflight_t preflight;
    wm_plan_t plan;
    wm_direct_run_t run; // `direct` NULL: none was started
    wm_by_mpi_t by;
} wm_nonblocking_call_t;

typedef struct wm_nonblocking_op {
    wm_op_t op;
    wm_buffer_t kept; // the caller's memory
    unsigned looks;
    wm_nonblocking_call_t *call; // NULL once it has ended
} wm_nonblocking_op_t;

// Of a communicator.
struct wm_nonblocking {
    wm_turns_t turns;
    wm_deferred_votes_t deferred_votes;
    wm_persistent_restart_t restart;
};

// Without a participant, which the caller opens; freed by free() until then.
// NULL when memory is exhausted.
wm_nonblocking_call_t *
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking);

// And lets go of what others gave. Lock held, or not where nothing was begun.
void
wm_nonblocking_call_free(wm_nonblocking_call_t *call);

// An operation of that call, or of one that was kept; NULL likewise.
wm_nonblocking_op_t *
wm_nonblocking_op_new(wm_comm_t *comm, wm_nonblocking_call_t *call);

// Sets the error that it ends with, the first time; true.
bool
wm_nonblocking_op_fail(wm_nonblocking_op_t *op, const wm_error_t *err);

// Now and then: whether a rank has died.
bool
wm_nonblocking_op_is_dead(wm_nonblocking_op_t *op, wm_error_t *err);

// Its first step: whether it has ended. `waits`: nothing more can be done now.
bool
wm_nonblocking_vote(wm_nonblocking_op_t *op, bool *waits);

#endif
