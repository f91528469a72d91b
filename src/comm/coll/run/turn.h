// SPDX-License-Identifier: BSD-3-Clause
// The order of a communicator's nonblocking collectives, which is the same on
// all ranks. Each call has a number, which chooses its bank. Calls that MPI
// does are begun in this order. Engine lock held, except for wm_turns_any.
#ifndef WM_COMM_COLL_RUN_TURN_H
#define WM_COMM_COLL_RUN_TURN_H

#include "comm/comm/comm.h"

typedef struct wm_turns wm_turns_t;

// The turn of one call, embedded in the call.
typedef struct wm_turn {
    wm_turns_t *turns;
    wm_op_t *op;          // the engine steps it
    struct wm_turn *next; // next in the queue of turns
    bool passed;          // it has left the queue
    uint32_t number;
} wm_turn_t;

// The turns of a communicator; zeroed: none.
struct wm_turns {
    uint32_t asked; // number of the last call
    _Atomic(wm_turn_t *) first;
    wm_turn_t *last;
    wm_turn_t *outside; // first without a bank; the engine does not step it
};

// Returns true if any call has not passed its turn. Any thread.
static inline bool
wm_turns_any(wm_turns_t *turns)
{
    return atomic_load(&turns->first) != NULL;
}

// Returns the barrier of a call; free when the call before has left that bank.
static inline wm_barrier_t *
wm_turns_bank(const wm_comm_t *comm, uint32_t number)
{
    return comm->aside[number % WM_BARRIER_ASIDE];
}

// Returns the next number, for a call that does not queue.
uint32_t
wm_turns_skip(wm_turns_t *turns);

// Queues a call behind those that were begun before. The caller decides who
// steps it.
void
wm_turn_queue(wm_turns_t *turns, wm_turn_t *turn);

// Queues a call likewise; the engine steps its operation once it has a bank.
void
wm_turn_enlist(wm_turns_t *turns, wm_turn_t *turn);

// Returns true if no call before this one is in the queue.
bool
wm_turn_is_first(const wm_turn_t *turn);

// Returns true if the bank of the call is free for it.
bool
wm_turn_has_bank(const wm_turn_t *turn);

// Takes a call out of the queue, when MPI has begun it or it has ended. No-op
// the second time.
void
wm_turn_pass(wm_turn_t *turn);

#endif
