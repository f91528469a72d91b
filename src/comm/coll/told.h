// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other of the calls that they gave to their streams, so
// that one that was asked for something else than the others is found out at a
// later call. GIL released by the caller; one thread at a time.
#ifndef WM_COMM_COLL_TOLD_H
#define WM_COMM_COLL_TOLD_H

#include "comm/node/gate.h"

#define WM_TOLD_CALLS 1024 // of which it is known what was asked for
#define WM_TOLD_PAIRED 128 // and what a rank gives to each, and takes from it

typedef struct {
    uint32_t calls; // begun
    uint64_t history[WM_TOLD_CALLS];
    uint32_t paired; // of them, those in which that varies
    // Of each of the last, for each rank: what it is given, what it gives, as
    // a number that stands for those before as well. NULL: none yet.
    uint64_t *pairs;
} wm_told_t;

// Nobody has told anything, on this rank.
void
wm_told_open(wm_told_t *told, const wm_gates_t *gates);

void
wm_told_close(wm_told_t *told);

// A call begins, and what must be alike is told; WM_CALL_UNKNOWN: it fails.
void
wm_told_begin(wm_told_t *told, const wm_gates_t *gates, int kind,
              uint64_t asked);

// Of a call that has begun: bytes for each rank, and of each. Out of memory
// nothing is told.
WM_MUST_CHECK int
wm_told_pair(wm_told_t *told, const wm_gates_t *gates, const size_t *gives,
             const size_t *takes, wm_error_t *err);

// This one has failed.
void
wm_told_fail(wm_told_t *told, const wm_gates_t *gates);

// Raise what the others have told so far of calls that were begun here; of
// others they will see it. What a pair of ranks has from each other only these
// two compare.
WM_MUST_CHECK int
wm_told_compare_pairs(const wm_told_t *told, const wm_gates_t *gates,
                      wm_error_t *err);

WM_MUST_CHECK int
wm_told_compare(const wm_told_t *told, const wm_gates_t *gates,
                wm_error_t *err);

#endif
