// SPDX-License-Identifier: BSD-3-Clause
// The sender's end of an offer that goes through the host: it fills a staging
// ring, a lane, of its segment. There are few lanes, and a receiver that
// computes, or is stopped, keeps its own for as long as it likes. Where that
// is so of all of them, a payload goes the way it goes to other hosts. The
// engine's lock is held.
#ifndef WM_COMM_WAY_STAGING_H
#define WM_COMM_WAY_STAGING_H

#include "comm/message/end.h"

typedef enum {
    WM_STAGING_WAITS = 0,
    WM_STAGING_BEGUN,  // wm_pieces_feed fills a lane
    WM_STAGING_BY_MPI, // wm_staging_send gives the payload to MPI
} wm_staging_t;

// The receiver has answered that it cannot reach the memory: a wm_staging_t,
// or a negative code.
WM_MUST_CHECK int
wm_staging_begin(wm_end_t *end, wm_error_t *err);

// Whether a payload that was offered is MPI's to carry.
bool
wm_staging_is_by_mpi(const wm_end_t *end);

// Sends chunks; 1 when all have gone and the receiver needs the slot no more.
WM_MUST_CHECK int
wm_staging_send(wm_end_t *end, wm_error_t *err);

// Gives back the lane of an operation that has one.
void
wm_staging_drop(wm_end_t *end);

#endif
