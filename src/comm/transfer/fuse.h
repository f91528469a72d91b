// SPDX-License-Identifier: BSD-3-Clause
// Reductions of several sets of transfers that share a kernel: those that are
// of one kind and ready in one round of the engine. The kernel runs on a
// stream of ours, and signals its end by one word for the stream. Engine lock
// held.
#ifndef WM_COMM_TRANSFER_FUSE_H
#define WM_COMM_TRANSFER_FUSE_H

#include "comm/transfer/transfer_set.h"

// Loads the kernels and takes the stream. Called before kernels that wait for
// other ranks could delay this. Engine lock not held.
void
wm_fuse_prepare(int device);

// Adds the reduction of a set's phase; its target is memory that nobody else
// uses. It is launched at the end of the round at the latest, and until then
// the set must not move. If the launch fails, set->failure says why. Returns
// false if the reduction cannot share a kernel.
bool
wm_fuse_add(wm_transfer_set_t *set, const wm_reduction_t *reduction);

#endif
