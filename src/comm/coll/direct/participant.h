// SPDX-License-Identifier: BSD-3-Clause
// The state of one rank in a collective, whichever engine does it: the facts
// about its memory that it publishes, the arguments that must be alike on all
// ranks, and its plan. Engine lock not held: wm_participant_open takes it.
#ifndef WM_COMM_COLL_DIRECT_PARTICIPANT_H
#define WM_COMM_COLL_DIRECT_PARTICIPANT_H

#include "array/reduce.h"
#include "comm/coll/call/call.h"
#include "comm/coll/direct/direct.h"
#include "comm/coll/direct/plan.h"

// Owns `direct`, with the memory that is ours; the call is the caller's.
typedef struct {
    wm_comm_t *comm;
    const wm_coll_t *call;
    wm_direct_t direct;
    bool reducible;        // kernels reduce its elements, if it reduces any
    wm_reduce_type_t type; // of such a reduction
    wm_reduce_op_t op;
    int root;     // as the ranks have published it
    size_t block; // bytes of a block that this rank sends, or receives
    size_t want;  // bytes of a block that it receives
} wm_participant_t;

static inline bool
wm_participant_sends(const wm_participant_t *participant)
{
    return wm_coll_sends(participant->call, participant->comm->rank);
}

static inline bool
wm_participant_receives(const wm_participant_t *participant)
{
    return wm_coll_receives(participant->call, participant->comm->rank);
}

static inline wm_ranks_t
wm_participant_group(const wm_participant_t *participant)
{
    return wm_comm_group(participant->comm, participant->comm->rank);
}

static inline wm_ranks_t
wm_participant_others(const wm_participant_t *participant)
{
    return wm_comm_others(participant->comm, participant->comm->rank);
}

// Returns the bytes of a block, from the arguments of this rank, which takes
// part.
size_t
wm_participant_block(const wm_participant_t *participant);

// Initializes the state: nothing is begun or published.
void
wm_participant_init(wm_participant_t *participant, wm_comm_t *comm,
                    wm_barrier_t *barrier, const wm_coll_t *call);

// Begins to make the send data ready, and finds out if this rank is capable.
// The rank may publish when wm_direct_is_ready() returns 1.
WM_MUST_CHECK int
wm_participant_open(wm_participant_t *participant, wm_error_t *err);

// For an engine that maps no memory: makes the send data ready likewise, and
// orders `direct.into` behind the users of the receive memory.
WM_MUST_CHECK int
wm_participant_order(wm_participant_t *participant, wm_error_t *err);

// Opens the participant again after wm_direct_close(), with the same memory.
WM_MUST_CHECK int
wm_participant_reopen(wm_participant_t *participant, wm_error_t *err);

// Fills the published data. wm_participant_open() does so if this rank is
// capable; coll_engines.c calls it if other engines serve this rank.
void
wm_participant_publish(wm_participant_t *participant);

// Returns the bytes of the published data.
size_t
wm_participant_nbytes(const wm_participant_t *participant);

// Compares the data that all ranks must publish alike, with the same result on
// all ranks; sets the root.
WM_MUST_CHECK int
wm_participant_compare(wm_participant_t *participant, wm_error_t *err);

// Returns the bytes that a rank has published, of all its blocks where these
// are compared; the bytes of the blocks of ranks `first` to `end` - 1, or
// SIZE_MAX on overflow.
size_t
wm_participant_bytes_of(const wm_participant_t *participant, int rank);
size_t
wm_participant_blocks_until(const wm_participant_t *participant, int first,
                            int end);

// Makes the plan. Returns false if there is none, on all ranks alike. `wrong`
// is an error that only this rank has found (code 0: none).
bool
wm_participant_plan(const wm_participant_t *participant, wm_plan_t *plan,
                    wm_error_t *wrong);

// Plans the work of a rank in a call. `from` is the offset of its block in the
// reduced vector; `has` and `wants` give the blocks of other ranks. Returns
// false if the facts allow no plan.
bool
wm_coll_make_plan(const wm_coll_t *call, const wm_facts_t *facts, size_t from,
                  wm_spans_t has, wm_spans_t wants, const void *context,
                  wm_plan_t *plan);

#endif
