// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/host/by_neighbor.h"

#include <limits.h>
#include <stdlib.h>

#include "comm/comm/comm.h"

typedef struct {
    wm_neighbors_t neighbors;
    int counts[WM_BARRIER_RANKS], at[WM_BARRIER_RANKS];
    MPI_Aint bytes_at[WM_BARRIER_RANKS];
    MPI_Datatype types[WM_BARRIER_RANKS];
    int all, each; // elements of the buffer, and of a block if all are alike
} side_t;

struct wm_by_neighbor {
    side_t sends, receives;
};

bool
wm_by_neighbor_serves(wm_coll_kind_t kind)
{
    return wm_coll_shape(kind)->neighbors;
}

static int
by_neighbor_count(size_t nbytes, size_t size, bool *fits)
{
    *fits &= nbytes / size <= INT_MAX;
    return (int)(nbytes / size);
}

// Fills the arguments of one side. A neighbor -1 (MPI_PROC_NULL) gets an empty
// block. `paired`: the span of a rank holds all blocks that this rank has for
// it.
static void
by_neighbor_lay(side_t *side, bool paired, const wm_buffer_t *buffer,
                const wm_span_t *spans, MPI_Datatype type, size_t size,
                bool *fits)
{
    for (int i = 0; i < side->neighbors.count; ++i) {
        int rank = side->neighbors.ranks[i];
        wm_span_t span = rank >= 0 ? spans[rank] : (wm_span_t){0, 0};
        side->counts[i] = by_neighbor_count(span.nbytes, size, fits);
        side->at[i] = by_neighbor_count(span.at, size, fits);
        side->bytes_at[i] = (MPI_Aint)span.at;
        side->types[i] = type;
    }
    if (paired)
        return;
    side->all = by_neighbor_count(buffer->nbytes, size, fits);
    if (side->neighbors.count > 0)
        side->each = by_neighbor_count(
            buffer->nbytes / (size_t)side->neighbors.count, size, fits);
}

static int
by_neighbor_begin(const wm_by_neighbor_t *by, wm_coll_kind_t kind, bool paired,
                  MPI_Comm on, char *send, char *receive, MPI_Datatype type,
                  MPI_Request *request)
{
    const side_t *out = &by->sends, *in = &by->receives;
    switch (paired ? WM_COLL_NEIGHBOR_ALLTOALLW : kind) {
    case WM_COLL_NEIGHBOR_ALLGATHER:
        return MPI_Ineighbor_allgather(send, out->all, type, receive, in->each,
                                       type, on, request);
    case WM_COLL_NEIGHBOR_ALLGATHERV:
        return MPI_Ineighbor_allgatherv(send, out->all, type, receive,
                                        in->counts, in->at, type, on, request);
    case WM_COLL_NEIGHBOR_ALLTOALL:
        return MPI_Ineighbor_alltoall(send, out->each, type, receive, in->each,
                                      type, on, request);
    case WM_COLL_NEIGHBOR_ALLTOALLV:
        return MPI_Ineighbor_alltoallv(send, out->counts, out->at, type,
                                       receive, in->counts, in->at, type, on,
                                       request);
    case WM_COLL_NEIGHBOR_ALLTOALLW:
        return MPI_Ineighbor_alltoallw(send, out->counts, out->bytes_at,
                                       out->types, receive, in->counts,
                                       in->bytes_at, in->types, on, request);
    default:
        return MPI_ERR_OTHER;
    }
}

int
wm_by_neighbor_begin(const wm_comm_t *comm, const wm_coll_t *call, char *send,
                     char *receive, MPI_Datatype type, size_t size,
                     wm_by_neighbor_t **neighbors, MPI_Request *request,
                     bool *fits, wm_error_t *err)
{
    wm_by_neighbor_t *by = calloc(1, sizeof *by);
    if (by == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *neighbors = by;
    bool paired = comm->neighbor_rule.paired;
    if (!wm_neighbor_find(comm->data, comm->size, &by->receives.neighbors,
                          &by->sends.neighbors))
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_TOPOLOGY,
            "the neighbours of the communicator are not known any more");
    by_neighbor_lay(&by->sends, paired, call->send, call->sends, type, size,
                    fits);
    by_neighbor_lay(&by->receives, paired, call->receive, call->receives, type,
                    size, fits);
    return !*fits ? 0
                  : wm_mpi_check(by_neighbor_begin(by, call->kind, paired,
                                                   comm->data, send, receive,
                                                   type, request),
                                 wm_call_name(call->kind), err);
}
