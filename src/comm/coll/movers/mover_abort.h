// SPDX-License-Identifier: BSD-3-Clause
// Aborts of a library's communicators. One such as ncclCommAbort lets their
// kernels leave at once, but returns only when all graphs with calls of theirs
// are gone, and when the streams of their calls have done the work before
// these. That may be work of ours, which needs the engine, or a graph of the
// program. So a thread of its own calls it, and nobody waits for that thread.
#ifndef WM_COMM_COLL_MOVERS_MOVER_ABORT_H
#define WM_COMM_COLL_MOVERS_MOVER_ABORT_H

#include "comm/coll/movers/movers.h"

// Aborts a communicator and its parent; either may be NULL. The caller uses
// them no more. Any locks.
void
wm_mover_abort(const wm_movers_t *movers, int device, void *handle,
               void *parent);

// Returns when they are gone: they have no graph, and wait for nobody.
void
wm_mover_abort_now(const wm_movers_t *movers, int device, void *handle,
                   void *parent);

// Lets aborts under way end, until half a second after the last one began: one
// that waits for a graph of the program delays later calls no longer. A kernel
// that is launched beside one, and waits for a rank that has died, would keep
// the driver from freeing what the abort frees. Others end with the process.
void
wm_mover_abort_finish(void);

#endif
