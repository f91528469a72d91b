// SPDX-License-Identifier: BSD-3-Clause
// The order of a communicator's nonblocking collectives, which is that of all
// ranks: each has a number, by which the ranks use a bank of its own,
// and what MPI does is begun in that order. Engine lock held, but for
// wm_turns_any.
#ifndef WM_COMM_COLL_TURN_H
#define WM_COMM_COLL_TURN_H

#include "comm/comm/comm.h"

typedef struct wm_turns wm_turns_t;

// Of one call, embedded in it.
typedef struct wm_turn {
    wm_turns_t *turns;
    wm_op_t *op;          // it steps
    struct wm_turn *next; // of those that have their turn to come
    bool passed;          // it is none of them
    uint32_t number;
} wm_turn_t;

// Of a communicator; zeroed: none.
struct wm_turns {
    uint32_t asked; // so far
    _Atomic(wm_turn_t *) first;
    wm_turn_t *last;
    wm_turn_t *outside; // the first that has no bank yet, so that none steps
};

// Whether any has its turn to come. Any thread.
static inline bool
wm_turns_any(wm_turns_t *turns)
{
    return atomic_load(&turns->first) != NULL;
}

// The barrier of a call, once the call before is through there.
static inline wm_barrier_t *
wm_turns_bank(const wm_comm_t *comm, uint32_t number)
{
    return comm->aside[number % WM_BARRIER_ASIDE];
}

// The next number is that of a call that waits for none of ours.
uint32_t
wm_turns_skip(wm_turns_t *turns);

// It has its turn now, behind those that were begun before; who steps it is
// the caller's to say.
void
wm_turn_take(wm_turns_t *turns, wm_turn_t *turn);

// Likewise, and the engine steps its operation once it has a bank.
void
wm_turn_enlist(wm_turns_t *turns, wm_turn_t *turn);

bool
wm_turn_is_first(const wm_turn_t *turn);

bool
wm_turn_has_bank(const wm_turn_t *turn);

// It has been begun by MPI, or has ended: others may. No-op the second time.
void
wm_turn_pass(wm_turn_t *turn);

#endif
