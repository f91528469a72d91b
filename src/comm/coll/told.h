// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other of the calls that they gave to their streams, so
// that one that was asked for something else than the others is found out at a
// later call. GIL released by the caller; one thread at a time.
#ifndef WM_COMM_COLL_TOLD_H
#define WM_COMM_COLL_TOLD_H

#include "comm/node/gate.h"

#define WM_TOLD_CALLS 1024 // of which it is known what was asked for

typedef struct {
    uint32_t calls; // begun
    uint64_t history[WM_TOLD_CALLS];
} wm_told_t;

// A call begins, and what must be alike is told; WM_CALL_UNKNOWN: it fails.
void
wm_told_begin(wm_told_t *told, const wm_gates_t *gates, int kind,
              uint64_t asked);

// This one has failed.
void
wm_told_fail(wm_told_t *told, const wm_gates_t *gates);

// Raises what the others have told so far of calls that were begun here; of
// others they will see it.
WM_MUST_CHECK int
wm_told_compare(const wm_told_t *told, const wm_gates_t *gates,
                wm_error_t *err);

#endif
