// SPDX-License-Identifier: BSD-3-Clause
// Collectives whose payload goes from GPU to GPU: between ranks of one host
// that have a barrier (comm/node/barrier.h) and map each other's memory. A
// rank publishes where its memory is in the preflight, then follows its plan
// (direct_run.h). GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_H
#define WM_COMM_COLL_DIRECT_H

#include <mpi.h>
#include <stddef.h>

#include "array/access.h"
#include "array/signal.h"
#include "comm/coll/strided_desc.h"
#include "comm/coll/plan.h"
#include "comm/comm/comm.h"
#include "comm/node/place.h"

// Whether others read what is sent with its gaps: the same for all of it, or
// of what it has for each rank.
typedef enum {
    WM_PUBLISHED_DENSE,
    WM_PUBLISHED_GAPS,
    WM_PUBLISHED_GAPS_EACH
} wm_published_gaps_t;

#define WM_PUBLISHED_EACH 16 // ranks for which that is published

// What a rank publishes in the preflight beside its numbers.
typedef struct {
    wm_place_t sends, receives;
    wm_thresholds_t thresholds; // of which those of one rank are used
    bool aliased;               // it receives where others read what it sends
    bool overwrites;  // or it writes over what it sends: others read a copy
    bool readable;    // `receives` can be mapped, or nothing is received
    bool writable;    // and all of it be written by others
    bool unmapped;    // it failed to map a peer's memory
    uint8_t failed;   // by this step; 0: it has not. Written before it arrives
    bool in_place;    // as it was asked
    uint8_t kind, op; // of what is reduced
    int32_t root;
    uint8_t gaps;         // wm_published_gaps_t
    uint64_t block;       // bytes of a block, where all are alike
    int32_t code, detail; // of its error
    char text[160];
    wm_strided_desc_t all;
    union {
        // What it has for each rank, where that is not alike.
        wm_span_t spans[WM_BARRIER_RANKS];
        wm_strided_desc_t each[WM_PUBLISHED_EACH];
    };
} wm_published_t;

#define WM_PUBLISHED_BYTES offsetof(wm_published_t, spans) // where that is all

// Where a rank has what it sends, with its gaps, of several blocks this one;
// NULL: without.
const wm_strided_desc_t *
wm_published_gaps(const wm_published_t *published, int index);

// What a rank gives to a call.
typedef struct {
    const wm_buffer_t *send, *receive; // NULL: none, or in place
    bool in_place; // what it sends is what it holds where it receives
    bool copied;   // of what is sent others read a copy, as it is written
    bool moved;    // alone, in one phase: gaps are stepped over by who reads
} wm_given_t;

// One rank's side of a call.
typedef struct {
    wm_comm_t *comm;
    wm_barrier_t *barrier; // of the communicator, at which the ranks arrive
    bool capable;          // our memory can take part
    int device;
    wm_access_t from, into;
    char *source, *target; // what we send, what we receive into, or NULL
    size_t nbytes;         // that are received
    bool written;          // some of what we receive
    // Of a source that cannot be exported or has gaps that are not published,
    // of a target with gaps that moves do not step over.
    wm_block_t *stand_in, *landing;
    const wm_pattern_t *gaps; // of the target, or NULL
    wm_signal_t signal;       // of its kernels; word NULL: there was none
    wm_published_t published; // last, as seldom all of it is used
} wm_direct_t;

// Returns true if the ranks have a barrier, and no memory is known to be out
// of reach.
bool
wm_direct_is_reached(const wm_comm_t *comm);

// Nothing is begun, nor anything published.
void
wm_direct_init(wm_direct_t *direct, wm_comm_t *comm, wm_barrier_t *barrier);

// Begins what makes ready what is sent, behind its producer, and fills
// `published`. Where this rank cannot take part `capable` is false, which is
// no error.
WM_MUST_CHECK int
wm_direct_open(wm_direct_t *direct, wm_comm_t *comm, wm_barrier_t *barrier,
               const wm_given_t *given, wm_error_t *err);

// Lets go of the streams: whether it can be opened again, as it has no memory
// of ours. Either way it ends.
WM_MUST_CHECK bool
wm_direct_close(wm_direct_t *direct);

// Once more, after that, of the same memory.
WM_MUST_CHECK int
wm_direct_reopen(wm_direct_t *direct, const wm_given_t *given,
                 wm_error_t *err);

// Whether it is ready: 1, 0 when not yet, or an error.
WM_MUST_CHECK int
wm_direct_is_ready(wm_direct_t *direct, wm_error_t *err);

WM_MUST_CHECK int
wm_direct_wait(wm_direct_t *direct, wm_error_t *err);

// Memory without gaps in place of a target that has some.
WM_MUST_CHECK int
wm_direct_take_landing(wm_direct_t *direct, wm_error_t *err);

// After all have published that they are capable: what the plan is made of,
// beside the root and what there is of it.
void
wm_direct_facts(const wm_direct_t *direct, wm_facts_t *facts);

void
wm_direct_end(wm_direct_t *direct);

#endif
