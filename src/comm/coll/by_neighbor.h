// SPDX-License-Identifier: BSD-3-Clause
// A nonblocking collective of neighbours that MPI does (by_mpi.h), on the
// communicator's `data`, which has the topology, or each neighbour once
// (comm/comm/neighbor.h). Its blocks are given by rank, and passed to MPI in
// the order of the neighbours. Engine lock held.
#ifndef WM_COMM_COLL_BY_NEIGHBOR_H
#define WM_COMM_COLL_BY_NEIGHBOR_H

#include "comm/coll/coll.h"

// Counts and displacements, which MPI reads until the call has ended.
typedef struct wm_by_neighbor wm_by_neighbor_t;

bool
wm_by_neighbor_serves(wm_call_kind_t kind);

// The elements are of `type`, of `size` bytes; counts that do not fit an int
// make *fits false, and nothing is begun. What is made is freed by free().
WM_MUST_CHECK int
wm_by_neighbor_begin(const wm_comm_t *comm, const wm_coll_t *call, char *send,
                     char *receive, MPI_Datatype type, size_t size,
                     wm_by_neighbor_t **neighbors, MPI_Request *request,
                     bool *fits, wm_error_t *err);

#endif
