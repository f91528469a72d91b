// SPDX-License-Identifier: BSD-3-Clause
// Nonblocking collectives whose reductions are ready in one round of the
// engine, and of one kind, share a kernel: on a stream of ours, whose kernels
// tell their ends by one word. Engine lock held.
#ifndef WM_COMM_COLL_FUSE_H
#define WM_COMM_COLL_FUSE_H

#include "comm/coll/direct_run.h"

// Makes ready what adding takes, before kernels may wait for others, which
// could keep it from that. Engine lock not held.
void
wm_fuse_prepare(int device);

// Adds what a run's phase computes, into memory that nobody else uses. It goes
// out at the end of the round at the latest; until then the run stays where it
// is. Where that fails the run is told why (run->why). False where it cannot
// be shared.
bool
wm_fuse_add(wm_direct_run_t *run, const wm_reduction_t *reduction);

// Launches what was added.
void
wm_fuse_flush(void);

#endif
