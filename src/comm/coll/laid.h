// SPDX-License-Identifier: BSD-3-Clause
// A collective on a stream, as this rank was asked for it: which bytes it has
// for others, and where it wants theirs.
#ifndef WM_COMM_COLL_LAID_H
#define WM_COMM_COLL_LAID_H

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
    // Of memory whose gaps the way does not step over: a copy without is to
    // have them there (comm/coll/packed.h), of so many bytes. NULL: none
    const wm_pattern_t *packs, *unpacks;
    size_t packs_nbytes, unpacks_nbytes;
} wm_laid_t;

// All but call, comm, device and stream. Raises what streams do not do.
WM_MUST_CHECK int
wm_laid_out(wm_laid_t *laid, wm_error_t *err);

// Bytes of the longest block here.
size_t
wm_laid_longest(const wm_laid_t *laid);

// Whether it would receive over blocks that others are still to get: those of
// one length are given and taken in step.
bool
wm_laid_is_overwritten(const wm_laid_t *laid);

// Bytes for each rank, and of each.
void
wm_laid_pairs(const wm_laid_t *laid, size_t *gives, size_t *takes);

// Bytes that all must give alike: of a block, of one that is reduced and then
// scattered in parts of any length of all; 0 where counts vary.
size_t
wm_laid_block(const wm_laid_t *laid);

// What all must ask for alike, as a number.
uint64_t
wm_laid_number(const wm_laid_t *laid);

#endif
