// SPDX-License-Identifier: BSD-3-Clause
// One nonblocking collective, and the states through which the engine steps
// it. nonblocking.h begins a call; persistent_restart.h has the steps of
// persistent ones. Engine lock held, except where a call is made.
#ifndef WM_COMM_COLL_RUN_NONBLOCKING_CALL_H
#define WM_COMM_COLL_RUN_NONBLOCKING_CALL_H

#include "comm/coll/run/persistent_restart.h"
#include "comm/coll/host/by_mpi.h"
#include "comm/coll/direct/direct_run.h"
#include "comm/coll/run/deferred_votes.h"
#include "comm/coll/direct/participant.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/run/turn.h"

typedef enum {
    WM_NONBLOCKING_RESTART,   // restart: the send data are not ready
    WM_NONBLOCKING_ALIKE,     // waits until all have published if they restart
    WM_NONBLOCKING_AHEAD,     // too far ahead of other ranks to vote
    WM_NONBLOCKING_VOTED,     // waits for the decision who does the call
    WM_NONBLOCKING_GPUS,      // GPUs do it: waits for a bank, then its data
    WM_NONBLOCKING_ARRIVING,  // waits until all have published their memory
    WM_NONBLOCKING_FOLLOWING, // follows its plan
    WM_NONBLOCKING_MPIS,      // MPI does it: waits for its turn
    WM_NONBLOCKING_FETCHING,  // fills the staging copies
    WM_NONBLOCKING_POSTED,    // with MPI
    WM_NONBLOCKING_STORING,   // copies the result back
} wm_nonblocking_state_t;

// Large, so `plan` and `run` stay uninitialized until they are used.
typedef struct wm_nonblocking_call {
    wm_turn_t turn; // must be first
    wm_nonblocking_t *nonblocking;
    wm_nonblocking_state_t state;
    wm_participant_t participant;
    wm_preflight_t preflight;
    wm_plan_t plan;
    wm_direct_run_t run; // `direct` NULL: not started
    wm_by_mpi_t by;
} wm_nonblocking_call_t;

typedef struct wm_nonblocking_op {
    wm_op_t op;
    wm_buffer_t kept; // the memory of the caller
    unsigned looks;
    wm_nonblocking_call_t *call; // NULL after it has ended
} wm_nonblocking_op_t;

// The state of a communicator.
struct wm_nonblocking {
    wm_turns_t turns;
    wm_deferred_votes_t deferred_votes;
    wm_persistent_restart_t restart;
    bool refused; // the next call has the number of the last one
};

// Returns a call without a participant, which the caller opens; until then
// free() frees the call. NULL: out of memory.
wm_nonblocking_call_t *
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking);

// Frees a call and releases its mappings. Engine lock held; not needed if
// nothing was begun.
void
wm_nonblocking_call_free(wm_nonblocking_call_t *call);

// Returns an operation of a call, also of one that was kept; NULL: out of
// memory.
wm_nonblocking_op_t *
wm_nonblocking_op_new(wm_comm_t *comm, wm_nonblocking_call_t *call);

// Sets the error of the operation, unless it has one. Returns true.
bool
wm_nonblocking_op_fail(wm_nonblocking_op_t *op, const wm_error_t *err);

// Returns true if a rank has died. Asks only now and then.
bool
wm_nonblocking_op_is_dead(wm_nonblocking_op_t *op, wm_error_t *err);

// The first step of a call. Returns true if the call has ended. *waits becomes
// true if nothing more can be done now.
bool
wm_nonblocking_vote(wm_nonblocking_op_t *op, bool *waits);

#endif
