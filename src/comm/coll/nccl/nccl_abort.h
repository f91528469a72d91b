// SPDX-License-Identifier: BSD-3-Clause
// Aborts of NCCL's communicators. ncclCommAbort lets their kernels leave at
// once, but returns only when all graphs with calls of theirs are gone, and
// when the streams of their calls have done the work before these. That may
// be work of ours, which needs the engine, or a graph of the program. So a
// thread of its own calls it, and nobody waits for that thread.
#ifndef WM_COMM_COLL_NCCL_NCCL_ABORT_H
#define WM_COMM_COLL_NCCL_NCCL_ABORT_H

#include "comm/coll/nccl/nccl_library.h"

// Aborts a communicator and its parent; either may be NULL. The caller uses
// them no more. Any locks.
void
wm_nccl_abort(int device, wm_nccl_handle_t *handle, wm_nccl_handle_t *parent);

// Returns when they are gone: they have no graph, and wait for nobody.
void
wm_nccl_abort_now(int device, wm_nccl_handle_t *handle,
                  wm_nccl_handle_t *parent);

// Lets aborts under way end, for half a second at most. A kernel that is
// launched beside one, and waits for a rank that has died, would keep the
// driver from freeing what the abort frees. Others end with the process.
void
wm_nccl_abort_finish(void);

#endif
