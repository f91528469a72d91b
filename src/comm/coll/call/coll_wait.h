// SPDX-License-Identifier: BSD-3-Clause
// Waits of a collective for other ranks, or for our stream. GIL released by
// the caller, engine lock not held.
#ifndef WM_COMM_COLL_CALL_COLL_WAIT_H
#define WM_COMM_COLL_CALL_COLL_WAIT_H

#include "comm/comm/comm.h"

// Looks before wm_coll_wait() makes an operation, since the others often
// arrive at once: at a stream, with so many tries each, and at words.
#define WM_LOOKS_AT_STREAM 200
#define WM_LOOK_TRIES 4
#define WM_LOOKS_AT_WORDS 2000

// Calls `look` until it returns 1, or an error, which is returned. The first
// `looks` calls come at once; then the engine calls it, with the engine lock
// held, and makes progress on all operations. Returns MPI's error if a rank
// has died.
WM_MUST_CHECK int
wm_coll_wait(wm_comm_t *comm, int (*look)(void *context, wm_error_t *err),
             void *context, int looks, wm_error_t *err);

// Does the same, and asks `interrupted` (NULL: nobody) as wm_op_wait() does.
// Returns WM_ERR_PYTHON if the wait was interrupted: then no look has returned
// 1, and none follows.
WM_MUST_CHECK int
wm_coll_wait_unless(wm_comm_t *comm,
                    int (*look)(void *context, wm_error_t *err), void *context,
                    int looks, bool (*interrupted)(wm_op_t *op),
                    wm_error_t *err);

#endif
