// SPDX-License-Identifier: BSD-3-Clause
// Collectives that move data from GPU to GPU, between ranks of one host that
// have a barrier (comm/node/barrier.h) and map each other's memory. A rank
// publishes the places of its memory in the preflight, then follows its plan
// (direct_exec.h). GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_DIRECT_DIRECT_H
#define WM_COMM_COLL_DIRECT_DIRECT_H

#include <mpi.h>
#include <stddef.h>

#include "array/access.h"
#include "array/signal.h"
#include "comm/coll/direct/plan.h"
#include "comm/comm/comm.h"
#include "comm/node/rkey.h"
#include "comm/transfer/strided_desc.h"

// The way in which others read the send buffer: without gaps, by one layout
// with gaps, or by one such layout for each rank.
typedef enum {
    WM_PUBLISHED_DENSE,
    WM_PUBLISHED_GAPS,
    WM_PUBLISHED_GAPS_EACH
} wm_published_gaps_t;

#define WM_PUBLISHED_EACH 16 // most ranks with a layout for each

// The data that a rank publishes in the preflight after its numbers.
typedef struct {
    wm_rkey_t sends, receives;
    wm_thresholds_t thresholds; // the thresholds of one rank are used by all
    bool aliased;               // it receives over the data that others read
    bool overwrites; // it receives over its send data: others may read a copy
    bool readable;   // others can map `receives`, or it receives nothing
    bool writable;   // others can write all of `receives`
    bool unmapped;   // it failed to map a peer's memory
    uint8_t failed;  // step by which it has failed; 0: none. Written before it
                     // arrives
    bool in_place;   // the call was made in place
    uint8_t type, op; // wm_reduce_type_t, wm_reduce_op_t
    int32_t root;
    uint8_t gaps;         // wm_published_gaps_t
    uint64_t block;       // bytes of a block, if all have one length
    int32_t code, detail; // its error
    char text[160];
    wm_strided_desc_t all;
    union {
        // One entry for each rank, if blocks differ.
        wm_span_t spans[WM_BARRIER_RANKS];
        wm_strided_desc_t each[WM_PUBLISHED_EACH];
    };
} wm_published_t;

#define WM_PUBLISHED_BYTES offsetof(wm_published_t, spans) // without the union

// Returns the layout of a rank's send buffer, or of its block `index`; NULL:
// without gaps. Borrowed.
const wm_strided_desc_t *
wm_published_gaps(const wm_published_t *published, int index);

// The buffers that a rank gives to a call.
typedef struct {
    const wm_buffer_t *send, *receive; // NULL: none, or in place
    bool in_place;                     // the send data lie where it receives
    bool copied; // others read a copy, as the send data are overwritten
    bool moved;  // only moves in one phase: readers step over gaps
} wm_given_t;

// The memory of one rank in a call. Owns the streams of both sides, the copies
// and the signal, until wm_direct_drop(). The caller's buffers are borrowed.
typedef struct {
    wm_comm_t *comm;
    wm_barrier_t *barrier; // of the communicator
    bool capable;          // the memory of this rank can take part
    int device;
    wm_access_t from, into;
    char *source, *target; // send and receive memory, or NULL
    size_t nbytes;         // bytes to receive
    bool written;          // we have begun to write the target
    // Copies of ours: of a source that cannot be exported, or whose gaps are
    // not published; and of a target whose gaps the moves cannot step over.
    wm_block_t *stand_in, *landing;
    const wm_pattern_t *gaps; // layout of the target, or NULL
    wm_signal_t signal;       // of its kernels; word NULL: none
    wm_published_t published; // last, because most of it is seldom used
} wm_direct_t;

// Returns true if the ranks are on one host, and all are known to map each
// other's memory.
bool
wm_direct_is_reached(const wm_comm_t *comm);

// Initializes the state: nothing is begun or published.
void
wm_direct_init(wm_direct_t *direct, wm_comm_t *comm, wm_barrier_t *barrier);

// Begins to make the send data ready, after their producer, and fills
// `published`. If this rank cannot take part, `capable` becomes false; this is
// no error.
WM_MUST_CHECK int
wm_direct_open(wm_direct_t *direct, const wm_given_t *given, wm_error_t *err);

// Makes the send data ready likewise, and orders work on `into` behind the
// users of the target, for GPU memory that nobody maps.
WM_MUST_CHECK int
wm_direct_order(wm_direct_t *direct, const wm_given_t *given, wm_error_t *err);

// Releases the streams. Returns true if wm_direct_reopen() can follow, as
// there is no memory of ours. Call wm_direct_drop() in any case.
WM_MUST_CHECK bool
wm_direct_close(wm_direct_t *direct);

// Opens the state again after wm_direct_close(), with the same memory.
WM_MUST_CHECK int
wm_direct_reopen(wm_direct_t *direct, const wm_given_t *given,
                 wm_error_t *err);

// Returns 1 when the send data are ready, 0 if not yet, or an error.
WM_MUST_CHECK int
wm_direct_is_ready(wm_direct_t *direct, wm_error_t *err);

// Makes a stream wait for the users of the buffers.
WM_MUST_CHECK int
wm_direct_precede(const wm_direct_t *direct, int device, CUstream stream,
                  wm_error_t *err);

// Takes memory without gaps in place of the target, which has gaps.
WM_MUST_CHECK int
wm_direct_take_landing(wm_direct_t *direct, wm_error_t *err);

// Fills the facts for the plan, except those about the call's block.
// `facts->root` is set. Called after all ranks have published that they are
// capable.
void
wm_direct_facts(const wm_direct_t *direct, wm_facts_t *facts);

// Waits for work of ours under way after an error, and frees our memory.
void
wm_direct_drop(wm_direct_t *direct);

#endif
