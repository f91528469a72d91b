// SPDX-License-Identifier: BSD-3-Clause
// Reductions of nonblocking collectives that share a kernel: those that are of
// one kind and ready in one round of the engine. The kernel runs on a stream
// of ours, and signals its end by one word for the stream. Engine lock held.
#ifndef WM_COMM_COLL_DIRECT_FUSE_H
#define WM_COMM_COLL_DIRECT_FUSE_H

#include "comm/coll/direct/direct_run.h"

// Loads the kernels and takes the stream. Called before kernels that wait for
// other ranks could delay this. Engine lock not held.
void
wm_fuse_prepare(int device);

// Adds the reduction of a run's phase; its target is memory that nobody else
// uses. It is launched at the end of the round at the latest, and until then
// the run must not move. If the launch fails, run->why says why. Returns false
// if the reduction cannot share a kernel.
bool
wm_fuse_add(wm_direct_run_t *run, const wm_reduction_t *reduction);

#endif
