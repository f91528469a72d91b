// SPDX-License-Identifier: BSD-3-Clause
// A nonblocking neighborhood collective that MPI does (by_mpi.h), on the
// communicator's `data`. That has the topology, or a graph with each neighbor
// once (comm/comm/neighbor.h). The caller gives blocks by rank; MPI gets them
// in the order of the neighbors. Engine lock held.
#ifndef WM_COMM_COLL_HOST_BY_NEIGHBOR_H
#define WM_COMM_COLL_HOST_BY_NEIGHBOR_H

#include "comm/coll/call/call.h"

// Counts and displacements. MPI reads them until the call has ended.
typedef struct wm_by_neighbor wm_by_neighbor_t;

// Returns true for neighborhood collectives.
bool
wm_by_neighbor_serves(wm_coll_kind_t kind);

// Begins the call, with elements of `type` and `size` bytes. If a count does
// not fit an int, *fits becomes false and nothing is begun. The caller frees
// *neighbors by free().
WM_MUST_CHECK int
wm_by_neighbor_begin(const wm_comm_t *comm, const wm_coll_t *call, char *send,
                     char *receive, MPI_Datatype type, size_t size,
                     wm_by_neighbor_t **neighbors, MPI_Request *request,
                     bool *fits, wm_error_t *err);

#endif
