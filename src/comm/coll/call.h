// SPDX-License-Identifier: BSD-3-Clause
// A collective as one rank was asked for it. Borrows the buffers; any thread.
#ifndef WM_COMM_COLL_CALL_H
#define WM_COMM_COLL_CALL_H

#include "comm/coll/coll_table.h"
#include "comm/coll/plan.h"
#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"

typedef struct {
    wm_call_kind_t kind;
    // Its arguments were read, and are memory of a GPU, with gaps that kernels
    // step over or without, or contiguous memory of the host, which nobody
    // else uses: what is said below. Else MPI is to do it. Places and lengths
    // are those of the bytes without gaps.
    bool on_device, on_host;
    const wm_buffer_t *send, *receive; // NULL: in place, or of no meaning here
    int root;                          // -1: another of this group
    int split; // of the communicator: between groups a root has the other's
    // Of v-forms, for each rank, and of what is scattered in place; else NULL,
    // and all blocks are alike.
    const wm_span_t *sends, *receives;
    MPI_Datatype type; // the elements, of `size` bytes, for MPI as well,
    size_t size;
    MPI_Op op; // and what they are reduced by
} wm_coll_t;

// Returns true if a rank sends in the call, or receives. Between groups a rank
// that shares its group with the root does neither.
bool
wm_coll_sends(const wm_coll_t *call, int rank);

bool
wm_coll_receives(const wm_coll_t *call, int rank);

// Returns true if received data lie over sent data on a GPU.
bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive);

#endif
