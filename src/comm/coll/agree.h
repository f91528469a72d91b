// SPDX-License-Identifier: BSD-3-Clause
// What all ranks of an intracommunicator tell each other before a collective:
// numbers, of which each rank gets the greatest that any gave, and a short
// payload that one of them has. At the gates of a host (comm/node/gate.h),
// else by messages between the ranks, in as many rounds as the logarithm of
// their number: it ends when all have come. GIL released by the caller, engine
// lock not held.
#ifndef WM_COMM_COLL_AGREE_H
#define WM_COMM_COLL_AGREE_H

#include "comm/comm/comm.h"

#define WM_AGREE_VALUES 14
#define WM_AGREE_BYTES 2000 // of payload, at most

typedef struct {
    int64_t values[WM_AGREE_VALUES];
    uint64_t nbytes; // of the payload; 0: this rank has none (yet)
    _Alignas(16) char payload[WM_AGREE_BYTES];
} wm_agree_t;

// All ranks call it in the same order as their collectives. MPI's errors. At
// gates, where a rank has no payload, it may say WM_AGREE_BYTES of another
// kind, which each of the others reads, until the next time.
WM_MUST_CHECK int
wm_agree_saying(wm_comm_t *comm, wm_agree_t *agreed, const void *said,
                size_t nbytes, wm_error_t *err);

// The two halves of it, which do not wait: all must have reached step 0 of the
// meeting between them.
void
wm_agree_say(wm_gates_t *gates, const wm_agree_t *agreed, const void *said,
             size_t nbytes);

WM_MUST_CHECK int
wm_agree_hear(const wm_comm_t *comm, const wm_gates_t *gates,
              wm_agree_t *agreed, wm_error_t *err);

const void *
wm_agree_said(const wm_gates_t *gates, int rank);

// What we have said, to be changed before we reach a step.
void *
wm_agree_mine(const wm_gates_t *gates);

#endif
