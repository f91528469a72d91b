// SPDX-License-Identifier: BSD-3-Clause
// What one rank does in a collective whose payload stays on the GPUs: moves
// and reductions out of memory that all ranks can read into its own, in phases
// between which all ranks wait for each other. Plans are made of facts that
// all ranks know, so that all make plans that fit together; nothing here asks
// or waits. Bytes.
#ifndef WM_COMM_COLL_PLAN_H
#define WM_COMM_COLL_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/node/gate.h"

#define WM_PLAN_MOVES (2 * WM_GATE_RANKS)
#define WM_PLAN_PHASES 2

// dst <- src of the first rank, op that of the next, and so on.
typedef struct {
    int phase;
    int first, count; // ranks, one after the other; one: it is copied
    bool result;      // out of what they have received, not of what they send
    size_t from;      // into that memory
    size_t into;      // into what this rank receives
    size_t nbytes;
} wm_move_t;

typedef struct {
    int phases, count;
    wm_move_t moves[WM_PLAN_MOVES]; // in order of their phases
} wm_plan_t;

typedef struct {
    int rank, size, root;
    size_t nbytes;  // of the vector, or of the block of one rank
    size_t element; // what is reduced must not be cut
    bool aliased;   // a rank receives where others read what it sends
    bool readable;  // what each rank has received can be read by all
} wm_facts_t;

// False where the facts allow none.
bool
wm_plan_allreduce(const wm_facts_t *facts, wm_plan_t *plan);

bool
wm_plan_bcast(const wm_facts_t *facts, wm_plan_t *plan);

#endif
