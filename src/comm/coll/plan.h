// SPDX-License-Identifier: BSD-3-Clause
// What one rank does in a collective whose payload stays on the GPUs: moves
// and reductions out of memory that all ranks can read into its own, or into
// that of all, in phases between which all ranks wait for each other. Plans
// are made of facts that all ranks know, so that all make plans that fit
// together; nothing here asks or waits. Bytes.
#ifndef WM_COMM_COLL_PLAN_H
#define WM_COMM_COLL_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/coll/thresholds.h"
#include "comm/comm/comm.h"

#define WM_PLAN_MOVES (2 * WM_BARRIER_RANKS)
#define WM_PLAN_PHASES 4

// dst <- src of the first rank, op that of the next, and so on.
typedef struct {
    int phase;
    int first, count; // ranks, one after the other; one: it is copied
    bool result;      // out of what they have received, not of what they send
    wm_ranks_t to;    // into what all of these receive, but where it is copied
                      // (count 1) not of whom it is; none: this rank alone
    size_t from;      // into that memory
    size_t into;      // into what this rank receives
    size_t nbytes;
} wm_move_t;

typedef struct {
    int phases, count;
    bool writes_peers; // ranks write into what others receive; in one phase
    wm_move_t moves[WM_PLAN_MOVES]; // in order of their phases
} wm_plan_t;

typedef struct {
    int rank, root;
    wm_ranks_t sources; // of whose data this rank gets its own
    wm_ranks_t group;   // who do of the same, itself among them
    wm_ranks_t takers;  // of what the root has, it may be among them
    size_t nbytes;      // of the vector, or of the block of one rank
    size_t element;     // what is reduced must not be cut
    bool aliased;       // a rank receives where others read what it sends
    bool readable;      // what each rank has received can be read by all
    bool writable;      // and be written where it is to be in the end
    wm_thresholds_t thresholds;
} wm_facts_t;

// Part of a rank's memory.
typedef struct {
    size_t at, nbytes;
} wm_span_t;

// What one rank has for another: (context, from, to).
typedef wm_span_t (*wm_spans_t)(const void *context, int from, int to);

// Part `index` of `parts`: where it begins; its bytes are up to the next.
size_t
wm_plan_part(size_t nbytes, size_t element, int parts, int index);

// Returns true if a move that is written into peers goes to this rank.
bool
wm_move_reaches(const wm_move_t *move, int rank);

// False where the facts allow none.
bool
wm_plan_allreduce(const wm_facts_t *facts, wm_plan_t *plan);

void
wm_plan_bcast(const wm_facts_t *facts, wm_plan_t *plan);

// All of it is what the root gets. Of several others each reduces a part, so
// that not all of what they have comes to one.
void
wm_plan_reduce_to_root(const wm_facts_t *facts, wm_plan_t *plan);

// What each rank has for this one goes to where it wants it; its own stays
// where `keeps`.
void
wm_plan_exchange(const wm_facts_t *facts, wm_spans_t has, wm_spans_t wants,
                 const void *context, bool keeps, wm_plan_t *plan);

// The same part of some ranks is reduced.
void
wm_plan_reduce(wm_ranks_t ranks, size_t from, size_t nbytes, wm_plan_t *plan);

#endif
