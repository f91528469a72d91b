// SPDX-License-Identifier: BSD-3-Clause
// One rank's part in a collective that GPUs do: what it publishes of its
// memory, what must be alike on all, and what it is to move. Engine lock not
// needed.
#ifndef WM_COMM_COLL_PART_H
#define WM_COMM_COLL_PART_H

#include "array/reduce.h"
#include "comm/coll/coll.h"

typedef struct {
    wm_comm_t *comm;
    const wm_coll_t *call;
    wm_native_t native;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    int root;     // as published
    size_t block; // of what this rank sends, or receives
    size_t want;  // of what it receives
} wm_part_t;

// Begins what makes ready what is sent, and finds out whether this rank is
// capable; it may be published once wm_native_is_ready().
WM_MUST_CHECK int
wm_part_open(wm_part_t *part, wm_comm_t *comm, wm_barrier_t *barrier,
             const wm_coll_t *call, wm_error_t *err);

// Once more, after wm_native_close(), with the same memory.
WM_MUST_CHECK int
wm_part_reopen(wm_part_t *part, wm_error_t *err);

// Fills what is published, if this rank is capable.
void
wm_part_publish(wm_part_t *part);

// Bytes of that.
size_t
wm_part_nbytes(const wm_part_t *part);

// Compares what all must publish alike, on all ranks; and sets the root.
WM_MUST_CHECK int
wm_part_compare(wm_part_t *part, wm_error_t *err);

// False where there is none, on all ranks. `wrong` is what this rank alone
// sees to be wrong, code 0: nothing.
bool
wm_part_plan(const wm_part_t *part, wm_plan_t *plan, wm_error_t *wrong);

// What a rank does of a call: `from` is where its block begins in what all
// reduce; `has` and `wants` give other ranks' blocks. False where the facts
// allow no plan.
bool
wm_part_choose(const wm_coll_t *call, const wm_facts_t *facts, size_t from,
               wm_spans_t has, wm_spans_t wants, const void *context,
               wm_plan_t *plan);

// Between groups who shares one with the root does neither.
bool
wm_part_sends(const wm_coll_t *call, int rank);

bool
wm_part_receives(const wm_coll_t *call, int rank);

#endif
