// SPDX-License-Identifier: BSD-3-Clause
// One nonblocking collective, and the states through which the engine steps
// it; an engine of collectives does the last one (coll_engines.h).
// nonblocking.h begins a call. Engine lock held, except where a call is made,
// and where noted.
//
// The starts of one persistent collective: after a start that went from GPU to
// GPU, each rank keeps its call. Before the next start the ranks publish, in
// bank 0 of the barrier, if they restart the kept call; then they need no vote
// and no preflight. If one rank does not, all ranks vote again.
#ifndef WM_COMM_COLL_RUN_NONBLOCKING_CALL_H
#define WM_COMM_COLL_RUN_NONBLOCKING_CALL_H

#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/deferred_votes.h"
#include "comm/coll/run/turn.h"

typedef enum {
    WM_NONBLOCKING_RESTART,  // restart: the send data are not ready
    WM_NONBLOCKING_ALIKE,    // waits until all have published if they restart
    WM_NONBLOCKING_AHEAD,    // too far ahead of other ranks to vote
    WM_NONBLOCKING_VOTED,    // waits for the decision if MPI does the call
    WM_NONBLOCKING_PREPARED, // MPI does not: waits for a bank, then its data
    WM_NONBLOCKING_ARRIVING, // waits until all have published their data
    WM_NONBLOCKING_ASKED,    // between hosts: waits for its class's engine
    WM_NONBLOCKING_BEGUN,    // likewise: waits until all ranks have begun
    WM_NONBLOCKING_CHOSEN,   // its engine is known: waits for its turn
    WM_NONBLOCKING_STARTED,  // its engine has started
} wm_nonblocking_state_t;

typedef struct wm_nonblocking_call {
    wm_turn_t turn; // must be first
    wm_nonblocking_t *nonblocking;
    wm_nonblocking_state_t state;
    unsigned looks;
    wm_preflight_t preflight;
    wm_coll_class_t *class; // asked: not settled as the call began
    unsigned usable;        // engines that were open then
    // Between hosts: ends once all ranks have begun; left to MPI on an error.
    MPI_Request announced;
    // wm_nonblocking_follow_program() sets these: the call, its buffers, and a
    // stream of ours behind the program's work, if there is any.
    wm_coll_t own;
    wm_buffer_t buffers[2];
    bool ordered;
    int device;
    CUstream stream;
    wm_coll_op_t coll;
} wm_nonblocking_call_t;

typedef struct wm_nonblocking_op {
    wm_op_t op;
    wm_buffer_t kept;            // the memory of the caller
    wm_nonblocking_call_t *call; // NULL after it has ended
} wm_nonblocking_op_t;

// One for each communicator; zeroed: its calls are not persistent.
typedef struct {
    bool repeats;
    // The last start went from GPU to GPU, on all ranks alike. So ranks begin
    // the next start by publishing if they restart.
    bool went;
    wm_nonblocking_call_t *kept; // that call, if this rank can restart it
} wm_persistent_restart_t;

// The state of a communicator.
struct wm_nonblocking {
    wm_turns_t turns;
    wm_deferred_votes_t deferred_votes;
    wm_persistent_restart_t restart;
};

// Returns the state of a communicator, made at its first call; NULL: out of
// memory. Takes the engine lock.
wm_nonblocking_t *
wm_nonblocking_of(wm_comm_t *comm);

// Returns a call whose operation the engines know; NULL: out of memory.
wm_nonblocking_call_t *
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking, wm_comm_t *comm,
                        const wm_coll_t *asked, wm_coll_form_t form);

// Gives the call to MPI, in its turn.
void
wm_nonblocking_give_to_mpi(wm_nonblocking_call_t *call);

// Orders a call whose engine a step will find behind the work that the program
// has given to GPUs so far: what it gives them later may wait for this call on
// other ranks. Waits for work that no stream orders, which a step may not do
// either. The call tells a failure at its end. Lock not held.
void
wm_nonblocking_follow_program(wm_nonblocking_call_t *call);

// Tells the other ranks that this rank has begun the call. An engine starts it
// when all have: work on a GPU that waited for another rank's program would
// keep a program from synchronizing that GPU, which that rank may wait for.
// All ranks alike, in the order of the calls, on `match`.
WM_MUST_CHECK int
wm_nonblocking_announce(wm_nonblocking_call_t *call, wm_error_t *err);

// Frees a call and all that it has taken.
void
wm_nonblocking_call_free(wm_nonblocking_call_t *call);

// Returns an operation of a call, also of one that was kept; NULL: out of
// memory.
wm_nonblocking_op_t *
wm_nonblocking_op_new(wm_comm_t *comm, wm_nonblocking_call_t *call);

// Ends the call with this error, or with the one that it has. Returns true.
bool
wm_nonblocking_call_fail(wm_nonblocking_call_t *call, const wm_error_t *err);

// The first step of a call. Returns true if the call has ended. *waits becomes
// true if nothing more can be done now.
bool
wm_nonblocking_vote(wm_nonblocking_call_t *call, bool *waits);

// Steps a call as far as possible. Returns true if it has ended, with the
// error in `coll.wrong`; else *waits is true.
bool
wm_nonblocking_call_step(wm_nonblocking_call_t *call, bool *waits);

// Begins a start. Returns true if this rank restarts the kept call, and has
// begun. Publishes if it does not. Lock not held.
bool
wm_persistent_restart_begin(wm_comm_t *comm, const wm_coll_t *asked,
                            const wm_buffer_t *kept, wm_op_t **op);

// Publishes that this rank does not restart the kept call; the others wait for
// this. Lock not held.
void
wm_persistent_restart_differ(wm_comm_t *comm);

// Frees the kept call. Lock not held.
void
wm_persistent_restart_drop(wm_persistent_restart_t *restart);

#endif
