// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of a collective on a stream, on this rank: the blocks that it
// sends, and where it receives blocks.
#ifndef WM_COMM_COLL_STREAM_COLL_DESC_H
#define WM_COMM_COLL_STREAM_COLL_DESC_H

#include "array/ll.h"
#include "array/reduce.h"
#include "comm/coll/call/on_stream.h"

// Names of the two sides. wm_coll_t: `send` and `receive` are the caller's
// buffers, `sends` and `receives` their blocks by rank. Here: `source` and
// `target` are addresses, `out` and `into` the blocks there. Kernels: the
// addresses are `src` and `dst`, the blocks by peer `gives` and `takes`.
// Plans: wm_spans_t `has` and `wants` give the blocks between any two ranks.
typedef struct {
    const wm_coll_t *call;
    const wm_shape_t *shape;
    wm_comm_t *comm;
    int device;
    CUstream stream;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    bool sends, receives; // this rank does so
    bool refused; // no GPU computes this op: the call fails on all ranks alike
    char *source, *target; // NULL: none
    // Blocks to send, and blocks to receive: one, or one for each rank. In
    // `few`, so that a filled descriptor must not move, or in `many`, owned.
    wm_span_t *out, *into;
    wm_span_t few[2][WM_BARRIER_RANKS], *many;
    // Layouts that the algorithm cannot walk: data are packed into a copy of
    // so many bytes, and unpacked. NULL: none.
    const wm_pattern_t *packs, *unpacks;
    size_t packs_nbytes, unpacks_nbytes;
} wm_coll_desc_t;

// Makes room for the blocks of all ranks, which are empty; `comm` is set, and
// all else is 0.
WM_MUST_CHECK int
wm_coll_desc_open(wm_coll_desc_t *desc, wm_error_t *err);

// Does so, and fills the rest of the descriptor; call, comm, device and stream
// are set, and all else is 0. Fails for calls that streams do not support.
WM_MUST_CHECK int
wm_coll_desc_fill(wm_coll_desc_t *desc, wm_error_t *err);

// Frees the room, also after an error; needless up to WM_BARRIER_RANKS ranks.
void
wm_coll_desc_drop(wm_coll_desc_t *desc);

// Returns the error of this rank's arguments in a call on a stream.
WM_MUST_CHECK int
wm_coll_desc_check(wm_comm_t *comm, const wm_coll_t *call,
                   const wm_coll_stream_t *on, wm_error_t *err);

// Returns the bytes of the longest block on this rank.
size_t
wm_coll_desc_longest(const wm_coll_desc_t *desc);

// Returns true if this rank would receive over blocks that other ranks have
// not read yet. This cannot happen if all blocks have the same length.
bool
wm_coll_desc_is_overwritten(const wm_coll_desc_t *desc);

// Writes the bytes that this rank sends to each rank, and receives from each.
void
wm_coll_desc_pairs(const wm_coll_desc_t *desc, size_t *gives, size_t *takes);

// Returns the bytes that all ranks must give alike: those of a block, or of
// the whole vector if each rank receives a part of its own length; 0 if counts
// vary.
size_t
wm_coll_desc_block(const wm_coll_desc_t *desc);

// Returns the hash of the arguments that must be alike on all ranks.
uint64_t
wm_coll_desc_hash(const wm_coll_desc_t *desc);

// Fills first and count with the ranks to which this one sends, and with those
// from which it receives: all ranks, one rank, those up to a rank, or those
// from a rank on.
void
wm_coll_desc_sides(const wm_coll_desc_t *desc, wm_ll_side_t *gives,
                   wm_ll_side_t *takes);

// Returns true if received blocks are reduced. One block alone is not.
bool
wm_coll_desc_reduces(const wm_coll_desc_t *desc, const wm_ll_side_t *takes);

#endif
