// SPDX-License-Identifier: BSD-3-Clause
// Waiting in a collective for the other ranks, or for our stream. GIL released
// by the caller, engine lock not held.
#ifndef WM_COMM_COLL_COLL_WAIT_H
#define WM_COMM_COLL_COLL_WAIT_H

#include "comm/comm/comm.h"

// Looks at once, before there is an operation to wait for: at a stream, each
// of so many tries, and at words, as the others come at once, as a rule.
#define WM_LOOKS_AT_STREAM 200
#define WM_LOOK_TRIES 4
#define WM_LOOKS_AT_WORDS 2000

// Calls `look` until it returns 1, or an error, which is returned: a few times
// at once, then from the engine, which makes progress on all else and holds
// its lock. Ends with MPI's error if a rank has died.
WM_MUST_CHECK int
wm_coll_wait(wm_comm_t *comm, int (*look)(void *context, wm_error_t *err),
             void *context, int looks, wm_error_t *err);

#endif
