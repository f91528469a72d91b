// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of a collective on a stream, as this rank was asked for it:
// the blocks that it has for others, and where it wants theirs.
#ifndef WM_COMM_COLL_COLL_DESC_H
#define WM_COMM_COLL_COLL_DESC_H

#include "array/reduce.h"
#include "comm/coll/coll.h"

typedef struct {
    const wm_coll_t *call;
    const wm_shape_t *shape;
    wm_comm_t *comm;
    int device;
    CUstream stream;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    bool sends, receives;
    bool refused; // as are all who ask for the same: no GPU computes the op
    char *source, *target;            // NULL: none
    wm_span_t out[WM_BARRIER_RANKS];  // where its blocks lie: one, or for each
    wm_span_t into[WM_BARRIER_RANKS]; // likewise
    // Memory whose gaps the algorithm does not step over is packed into a copy
    // (comm/coll/packed.h) of so many bytes, and unpacked. NULL: none
    const wm_pattern_t *packs, *unpacks;
    size_t packs_nbytes, unpacks_nbytes;
} wm_coll_desc_t;

// Fills all but call, comm, device and stream. Fails for calls that streams do
// not support.
WM_MUST_CHECK int
wm_coll_desc_fill(wm_coll_desc_t *desc, wm_error_t *err);

// Returns the bytes of the longest block here.
size_t
wm_coll_desc_longest(const wm_coll_desc_t *desc);

// Returns true if this rank would receive over blocks that others are still to
// get: blocks of one length are given and taken in step.
bool
wm_coll_desc_is_overwritten(const wm_coll_desc_t *desc);

// Bytes for each rank, and of each.
void
wm_coll_desc_pairs(const wm_coll_desc_t *desc, size_t *gives, size_t *takes);

// Bytes that all must give alike: of a block, of one that is reduced and then
// scattered in parts of any length of all; 0 where counts vary.
size_t
wm_coll_desc_block(const wm_coll_desc_t *desc);

// Returns the hash of what all must ask for alike.
uint64_t
wm_coll_desc_hash(const wm_coll_desc_t *desc);

#endif
