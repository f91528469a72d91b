// SPDX-License-Identifier: BSD-3-Clause
// The plan of one rank in a collective from GPU to GPU: the transfers of its
// set (transfer_set.h), out of memory that all ranks can read, into the rank's
// own memory or into that of all. All ranks wait for each other between
// phases. Plans are made of facts that all ranks know, so that all plans fit
// together. Nothing here communicates or waits. Sizes are in bytes.
#ifndef WM_COMM_COLL_DIRECT_PLAN_H
#define WM_COMM_COLL_DIRECT_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/coll/call/call.h"
#include "comm/coll/direct/thresholds.h"
#include "comm/comm/comm.h"
#include "comm/transfer/transfer_set.h"

#define WM_PLAN_MOVES (2 * WM_BARRIER_RANKS)
#define WM_PLAN_PHASES 4
// The regions of a plan: the send memory of each rank, then the receive memory
// of each.
#define WM_PLAN_REGIONS (2 * WM_BARRIER_RANKS)

typedef struct {
    int phases, count;
    bool writes_peers; // ranks write into receive memory of peers; one phase
    wm_transfer_t moves[WM_PLAN_MOVES]; // in the order of phases
} wm_plan_t;

typedef struct {
    int rank, root;
    int ranks;          // number of all
    wm_ranks_t sources; // ranks from which this rank receives
    wm_ranks_t group;   // ranks that receive the same, this rank included
    wm_ranks_t takers;  // ranks that receive from the root; may include it
    size_t nbytes;      // bytes of the vector, or of the block of one rank
    size_t element;     // bytes of an element, which is not divided
    bool aliased;       // some rank receives over data that others read
    bool readable;      // all ranks can read each rank's receive memory
    bool writable;      // all ranks can write each rank's receive memory
    wm_thresholds_t thresholds;
} wm_facts_t;

// Returns the block of rank `from` for rank `to`: (context, from, to).
typedef wm_span_t (*wm_spans_t)(const void *context, int from, int to);

// Returns the offset of part `index` of `parts`; the part ends at the next
// one.
size_t
wm_plan_part(size_t nbytes, size_t element, int parts, int index);

// Plans an Allreduce. Returns false if the facts allow no plan.
bool
wm_plan_allreduce(const wm_facts_t *facts, wm_plan_t *plan);

void
wm_plan_bcast(const wm_facts_t *facts, wm_plan_t *plan);

// Plans a Reduce. If there are several other ranks, each may reduce a part, so
// that less data go to the root.
void
wm_plan_reduce_to_root(const wm_facts_t *facts, wm_plan_t *plan);

// Plans an exchange: each rank's block for this one goes to the offset where
// this rank wants it. With `keeps`, its own block is not moved.
void
wm_plan_exchange(const wm_facts_t *facts, wm_spans_t has, wm_spans_t wants,
                 const void *context, bool keeps, wm_plan_t *plan);

// Plans the reduction of one part of some ranks, of `nbytes` bytes.
void
wm_plan_reduce(const wm_facts_t *facts, wm_ranks_t ranks, size_t from,
               size_t nbytes, wm_plan_t *plan);

#endif
