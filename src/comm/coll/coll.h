// SPDX-License-Identifier: BSD-3-Clause
// Barriers, and blocking collectives of GPU memory: by the GPUs, or through
// symmetric memory, if all ranks have GPU memory, else by MPI. A rank that has
// host memory declines, and does not wait. What has begun cannot be taken
// back, so nothing here can be interrupted; where one rank fails, or is in
// another collective, all raise. GIL released by the caller, engine lock not
// held. The buffers stay the caller's, who releases them.
#ifndef WM_COMM_COLL_COLL_H
#define WM_COMM_COLL_COLL_H

#include "comm/coll/preflight.h"
#include "comm/engine/buffer.h"

// Also closes mappings of memory that other ranks have freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

// A call, as this rank has been asked for it.
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

// What a call does with its buffers.
typedef struct {
    bool scatters; // what a rank sends is a block for each
    bool gathers;  // what a rank receives is a block of each
    bool rooted, reduces, varies;
    bool outward;  // it is the root who sends
    bool uneven;   // of blocks that are scattered each has a length of its own
    bool scans;    // what a rank gets is of those before it
    bool itself;   // and of itself
    bool overlaid; // in place, it receives where others read what it sends
} wm_shape_t;

const wm_shape_t *
wm_coll_shape(wm_call_kind_t kind);

// Whether what is received lies over what is sent, on a GPU.
bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive);

// Returns true if ranks exchange data before calls that MPI may do.
static inline bool
wm_coll_is_asked(const wm_comm_t *comm)
{
    return comm->barrier != NULL;
}

// By all ranks of such a communicator, between groups their `whole`: does it
// on the GPUs where all are capable; 1 where MPI is to do it.
WM_MUST_CHECK int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err);

// Instead, by a rank that MPI is to serve: MPI serves all. Does not wait.
void
wm_coll_decline(wm_comm_t *comm);

#endif
