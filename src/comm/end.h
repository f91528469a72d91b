// SPDX-License-Identifier: BSD-3-Clause
// How an operation ends: it fails, its caller is told, and has his buffer
// back.
#ifndef WM_COMM_END_H
#define WM_COMM_END_H

#include "cuda/error.h"

typedef struct wm_op wm_op_t; // op.h

// What a caller who has been told the end knows of the memory it was given.
typedef enum {
    WM_DONE_TOLD = 1, // it may still be in use
    WM_DONE_ENDED,    // nobody uses it any more
} wm_done_t;

// The reference of a caller who was told the end, and then has his buffer
// back: another thread that has told him may let go of the operation later.
void
wm_op_release_told(wm_op_t *op);

// Tells the caller the end, before the operation's own: sets done, completes
// the MPI request. Lock held.
void
wm_op_complete(wm_op_t *op);

// Likewise at its end, when it has left the engine. Lock held.
void
wm_op_end(wm_op_t *op);

// Sets op->error from `err`; the first error stays. Tells nobody: the end is
// told by wm_op_complete.
void
wm_op_fail(wm_op_t *op, const wm_error_t *err);

#endif
