// SPDX-License-Identifier: BSD-3-Clause
// The neighbors of ranks in a communicator with a topology. GIL released by
// the caller, as MPI is asked.
#ifndef WM_COMM_COMM_NEIGHBOR_H
#define WM_COMM_COMM_NEIGHBOR_H

#include <mpi.h>

#include "comm/node/barrier.h"
#include "cuda/error.h"

// Ranks in the order of the blocks of a neighborhood collective; -1: no rank.
typedef struct {
    int count;
    int ranks[WM_BARRIER_RANKS];
    bool crossed; // of two blocks of a dimension, the second comes first
} wm_neighbors_t;

// Finds the neighbors in the topology of a communicator with `size` ranks.
// Returns false if there is no topology, or if it has more than
// WM_BARRIER_RANKS ranks or neighbors.
bool
wm_neighbor_find(MPI_Comm user, int size, wm_neighbors_t *sources,
                 wm_neighbors_t *destinations);

typedef struct {
    int rank, block; // -1: no block
} wm_neighbor_block_t;

#define WM_NEIGHBOR_PARTS (2 * WM_BARRIER_RANKS)

// Lists the blocks of rank 0, of rank 1 and so on, among those of one rank, as
// the other side has them. They are in the standard's order, except that in a
// Cartesian topology data that are sent down are received from above. Returns
// how many.
int
wm_neighbor_parts(const wm_neighbors_t *neighbors, int size,
                  wm_neighbor_block_t *parts);

// The way to call MPI for the collectives of neighbors in a topology; the same
// on all ranks.
typedef struct {
    // Some rank is another's neighbor twice, and MPIs disagree on which block
    // is which. The clone has each neighbor once, in the order of ranks.
    // There, all data of a rank for another are one block of an alltoallw,
    // with the parts in their order.
    bool paired;
    // This MPI misplaces such blocks in blocking calls, too, or cannot be
    // given such a topology: blocking calls go the same way.
    bool misplaces;
} wm_neighbor_rule_t;

// Returns 1 if MPI must be called in pairs for the topology of `user`, 0 if
// not, or if there is none. Collective over `user` if the topology is
// distributed.
WM_MUST_CHECK int
wm_neighbor_is_paired(MPI_Comm user, wm_error_t *err);

// Makes a communicator of the ranks of `base`; collective over it. It has the
// topology of `user`, which has the same ranks, or the one that *rule says; if
// there is none, wm_mpi_duplicate() makes it. Its errors return.
WM_MUST_CHECK int
wm_neighbor_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone,
                  wm_neighbor_rule_t *rule, wm_error_t *err);

#endif
