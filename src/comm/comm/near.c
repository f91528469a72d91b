// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/near.h"

// Each: false where MPI fails, or there are more than WM_GATE_RANKS.

static bool
find_cartesian(MPI_Comm user, wm_near_t *near)
{
    int ndims = 0;
    if (MPI_Cartdim_get(user, &ndims) != MPI_SUCCESS
        || ndims > WM_GATE_RANKS / 2)
        return false;
    near->count = 2 * ndims;
    for (int i = 0; i < ndims; ++i)
        if (MPI_Cart_shift(user, i, 1, &near->ranks[2 * i],
                           &near->ranks[2 * i + 1])
            != MPI_SUCCESS)
            return false;
    return true;
}

static bool
find_in_graph(MPI_Comm user, int rank, wm_near_t *near)
{
    return MPI_Graph_neighbors_count(user, rank, &near->count) == MPI_SUCCESS
           && near->count <= WM_GATE_RANKS
           && MPI_Graph_neighbors(user, rank, near->count, near->ranks)
                  == MPI_SUCCESS;
}

static bool
find_in_distributed(MPI_Comm user, wm_near_t *sources, wm_near_t *destinations)
{
    int weighted, from[WM_GATE_RANKS], to[WM_GATE_RANKS];
    return MPI_Dist_graph_neighbors_count(user, &sources->count,
                                          &destinations->count, &weighted)
               == MPI_SUCCESS
           && sources->count <= WM_GATE_RANKS
           && destinations->count <= WM_GATE_RANKS
           && MPI_Dist_graph_neighbors(user, sources->count, sources->ranks,
                                       from, destinations->count,
                                       destinations->ranks, to)
                  == MPI_SUCCESS;
}

static bool
are_different(wm_near_t *near)
{
    bool known[WM_GATE_RANKS] = {false}, different = true;
    for (int i = 0; i < near->count; ++i) {
        int *rank = &near->ranks[i];
        if (*rank == MPI_PROC_NULL)
            *rank = -1;
        else {
            different &= !known[*rank];
            known[*rank] = true;
        }
    }
    return different && near->count > 0;
}

bool
wm_near_find(const wm_comm_t *comm, wm_near_t *sources,
             wm_near_t *destinations)
{
    int kind = MPI_UNDEFINED;
    if (comm->size > WM_GATE_RANKS
        || MPI_Topo_test(comm->user, &kind) != MPI_SUCCESS)
        return false;
    bool found = kind == MPI_DIST_GRAPH
                     ? find_in_distributed(comm->user, sources, destinations)
                 : kind == MPI_CART ? find_cartesian(comm->user, sources)
                 : kind == MPI_GRAPH
                     ? find_in_graph(comm->user, comm->rank, sources)
                     : false;
    if (found && kind != MPI_DIST_GRAPH)
        *destinations = *sources;
    return found && are_different(sources) && are_different(destinations);
}
