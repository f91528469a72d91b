// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other of the calls that they gave to their streams, so
// that one that was asked for something else than the others is found out at a
// later call. What must be alike on all ranks is told to all; where counts
// vary, what two have from each other to that one, and only these two compare
// it. GIL released by the caller; one thread at a time.
#ifndef WM_COMM_COLL_TOLD_H
#define WM_COMM_COLL_TOLD_H

#include "comm/coll/laid.h"
#include "comm/node/gate.h"

#define WM_TOLD_CALLS 1024 // of which it is known what was asked for

typedef struct {
    uint32_t calls; // begun
    uint64_t history[WM_TOLD_CALLS];
    // Likewise, for each rank: what it is given, what it gives, as a number
    // that stands for those before as well. NULL: counts have never varied.
    uint64_t *pairs;
} wm_told_t;

// This rank has begun nothing.
void
wm_told_open(wm_told_t *told, const wm_gates_t *gates);

void
wm_told_close(wm_told_t *told);

// A call begins; `laid` NULL: it fails. Out of memory it is begun likewise,
// and told in part.
WM_MUST_CHECK int
wm_told_begin(wm_told_t *told, const wm_gates_t *gates, const wm_laid_t *laid,
              wm_error_t *err);

// This one has failed.
void
wm_told_fail(const wm_told_t *told, const wm_gates_t *gates);

// Raises what the others have told so far of calls that were begun here; of
// others they will see it.
WM_MUST_CHECK int
wm_told_compare(const wm_told_t *told, const wm_gates_t *gates,
                wm_error_t *err);

// Our stream is in a call, as the others hear: whether one of theirs has been
// so in that as well, and was asked for something else. Where only two see it
// the others hear that this rank has failed.
bool
wm_told_is_amiss(const wm_told_t *told, const wm_gates_t *gates,
                 uint32_t call);

#endif
