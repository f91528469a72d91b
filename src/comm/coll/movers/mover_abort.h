// SPDX-License-Identifier: BSD-3-Clause
// Aborts of a library's communicators. One such as ncclCommAbort lets their
// kernels leave at once, but returns only when all graphs with calls of theirs
// are gone, and when the streams of their calls have done the work before
// these. That may be work of ours, which needs the engine, or a graph of the
// program. So a thread of its own calls it. Later calls wait for that thread
// only while it frees memory.
#ifndef WM_COMM_COLL_MOVERS_MOVER_ABORT_H
#define WM_COMM_COLL_MOVERS_MOVER_ABORT_H

#include <stdatomic.h>

#include "comm/coll/movers/movers.h"

// Aborts a communicator and its parent; either may be NULL. The caller uses
// them no more. `graphs`: the number of graphs with its calls, until the
// caller forgets the abort. Any locks.
void
wm_mover_abort(const wm_movers_t *movers, int device, void *handle,
               void *parent, const _Atomic int *graphs);
void
wm_mover_abort_forget(const _Atomic int *graphs);

// Returns when they are gone: they have no graph, and wait for nobody.
void
wm_mover_abort_now(const wm_movers_t *movers, int device, void *handle,
                   void *parent);

// Returns true while aborts under way free what they have. A kernel that is
// launched meanwhile, and waits for a rank that dies, would keep the driver
// from freeing this, and then the driver launches nothing for anybody. Aborts
// that wait for graphs of the program free nothing yet. Nobody waits longer
// for one than WM_FREEING_US.
bool
wm_mover_abort_frees(void);

// Waits until none does, and lets go of the GIL meanwhile.
void
wm_mover_abort_finish(void);

#endif
