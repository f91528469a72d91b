// SPDX-License-Identifier: BSD-3-Clause
// Who is next to whom in a communicator with a topology. GIL released by the
// caller, as MPI is asked.
#ifndef WM_COMM_COMM_NEIGHBOR_H
#define WM_COMM_COMM_NEIGHBOR_H

#include <mpi.h>

#include "comm/node/barrier.h"
#include "cuda/error.h"

// Ranks in the order of a neighbourhood collective's blocks; -1: of nobody.
typedef struct {
    int count;
    int ranks[WM_BARRIER_RANKS];
    bool crossed; // of two blocks of a dimension the second comes first
} wm_neighbors_t;

// Of the topology of a communicator with `size` ranks. False where there is
// none, or there are more than WM_BARRIER_RANKS ranks or neighbours.
bool
wm_neighbor_find(MPI_Comm topology, int size, wm_neighbors_t *sources,
                 wm_neighbors_t *destinations);

typedef struct {
    int rank, block; // -1: it has none
} wm_neighbor_part_t;

#define WM_NEIGHBOR_PARTS (2 * WM_BARRIER_RANKS)

// The blocks of rank 0, of rank 1 and so on, among those of one rank as the
// other side has them: in their order, as the standard says, but that in a
// Cartesian topology what is sent down is received from above. How many.
int
wm_neighbor_parts(const wm_neighbors_t *neighbors, int size,
                  wm_neighbor_part_t *parts);

// How MPI is to be asked for the collectives of neighbours of a topology, the
// same on all ranks.
typedef struct {
    // Some rank is another's neighbour twice: MPIs disagree on which block is
    // which. The clone has each neighbour once, in the order of their ranks,
    // and what a rank has for another is one block of an alltoallw there, of
    // the parts in their order.
    bool paired;
    // This MPI places such blocks wrongly in blocking calls as well, or cannot
    // be given such a topology: they go the same way.
    bool misplaces;
} wm_neighbor_rule_t;

// Returns 1 if the topology of `user` is one whose collectives MPI is asked
// for in pairs, 0 if not or if there is none. Collective over `user` where it
// is distributed.
WM_MUST_CHECK int
wm_neighbor_is_paired(MPI_Comm user, wm_error_t *err);

// A communicator of the ranks of `base`, collective over it, with the topology
// that `user` has, of the same ranks, or what *rule says; where it has none,
// by wm_mpi_duplicate. Errors return.
WM_MUST_CHECK int
wm_neighbor_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone,
                  wm_neighbor_rule_t *rule, wm_error_t *err);

#endif
