// SPDX-License-Identifier: BSD-3-Clause
// A collective of contiguous GPU memory by a library's moves (movers.h), on
// one rank and a stream: by its own gather and broadcast where these do, else
// by groups of sends and receives. Kernels of ours add, in the order of the
// ranks, so that all ranks and all runs get the same bits, and those that one
// host gives. Every rank has the same steps, by facts that all know alike: the
// lengths that MPI wants to be alike.
#ifndef WM_COMM_COLL_MOVERS_MOVER_RUN_H
#define WM_COMM_COLL_MOVERS_MOVER_RUN_H

#include "comm/coll/movers/mover_comm.h"
#include "comm/coll/stream/coll_desc.h"

typedef struct {
    wm_mover_comm_t *own;
    wm_coll_desc_t desc; // filled
    wm_ll_side_t gives, takes;
    wm_block_t *room; // memory of ours until the stream has passed; or NULL
    size_t sent;      // bytes that this rank gives to others
} wm_mover_run_t;

// Fills the descriptor for a call on a stream of the communicator's device.
// The run must not move; the caller drops it, also after an error.
WM_MUST_CHECK int
wm_mover_run_fill(wm_mover_run_t *run, wm_mover_comm_t *own,
                  const wm_coll_t *call, CUstream stream, wm_error_t *err);

// Takes the memory that the call needs. *run->room may be set on failure.
WM_MUST_CHECK int
wm_mover_run_take(wm_mover_run_t *run, wm_error_t *err);

// Enqueues the call, and counts it. After an error others may wait: the caller
// breaks the communicator. Fails if that is broken.
WM_MUST_CHECK int
wm_mover_run_enqueue(wm_mover_run_t *run, wm_error_t *err);

// Frees what it has, but the room, when the call is enqueued.
void
wm_mover_run_drop(wm_mover_run_t *run);

#endif
