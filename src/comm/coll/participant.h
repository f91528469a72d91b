// SPDX-License-Identifier: BSD-3-Clause
// The state of one rank in a collective that GPUs do: what the rank publishes
// of its memory, what must be alike on all, and what it is to move. Engine
// lock not held: wm_participant_open and wm_participant_reopen take it.
#ifndef WM_COMM_COLL_PARTICIPANT_H
#define WM_COMM_COLL_PARTICIPANT_H

#include "array/reduce.h"
#include "comm/coll/call.h"
#include "comm/coll/direct.h"
#include "comm/coll/plan.h"

typedef struct {
    wm_comm_t *comm;
    const wm_coll_t *call;
    wm_direct_t direct;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    int root;     // as published
    size_t block; // of what this rank sends, or receives
    size_t want;  // of what it receives
} wm_participant_t;

// Begins what makes ready what is sent, and finds out whether this rank is
// capable; it may be published once wm_direct_is_ready().
WM_MUST_CHECK int
wm_participant_open(wm_participant_t *participant, wm_comm_t *comm,
                    wm_barrier_t *barrier, const wm_coll_t *call,
                    wm_error_t *err);

// Once more, after wm_direct_close(), with the same memory.
WM_MUST_CHECK int
wm_participant_reopen(wm_participant_t *participant, wm_error_t *err);

// Fills what is published, if this rank is capable.
void
wm_participant_publish(wm_participant_t *participant);

// Bytes of that.
size_t
wm_participant_nbytes(const wm_participant_t *participant);

// Compares what all must publish alike, on all ranks; and sets the root.
WM_MUST_CHECK int
wm_participant_compare(wm_participant_t *participant, wm_error_t *err);

// False where there is none, on all ranks. `wrong` is what this rank alone
// sees to be wrong, code 0: nothing.
bool
wm_participant_plan(const wm_participant_t *participant, wm_plan_t *plan,
                    wm_error_t *wrong);

// Plans what a rank does in a call: `from` is where its block begins in what
// all reduce; `has` and `wants` give other ranks' blocks. Returns false if the
// facts allow no plan.
bool
wm_coll_make_plan(const wm_coll_t *call, const wm_facts_t *facts, size_t from,
                  wm_spans_t has, wm_spans_t wants, const void *context,
                  wm_plan_t *plan);

#endif
