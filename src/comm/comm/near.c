// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/near.h"

#include <stdlib.h>

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

static void
name_nobody(wm_near_t *near)
{
    for (int i = 0; i < near->count; ++i)
        if (near->ranks[i] == MPI_PROC_NULL)
            near->ranks[i] = -1;
}

bool
wm_near_are_different(const wm_near_t *near)
{
    bool known[WM_GATE_RANKS] = {false}, different = true;
    for (int i = 0; i < near->count; ++i) {
        int rank = near->ranks[i];
        if (rank < 0)
            continue;
        different &= !known[rank];
        known[rank] = true;
    }
    return different && near->count > 0;
}

int
wm_near_parts(const wm_near_t *near, int size, wm_near_part_t *parts)
{
    int count = 0;
    for (int rank = 0; rank < size; ++rank) {
        int before = count;
        for (int i = 0; i < near->count; ++i) {
            int block = near->crossed ? i ^ 1 : i;
            if (near->ranks[block] == rank)
                parts[count++] = (wm_near_part_t){rank, block};
        }
        if (count == before)
            parts[count++] = (wm_near_part_t){rank, -1};
    }
    return count;
}

bool
wm_near_find(const wm_comm_t *comm, wm_near_t *sources,
             wm_near_t *destinations)
{
    int kind = MPI_UNDEFINED;
    if (comm->size > WM_GATE_RANKS
        || MPI_Topo_test(comm->data, &kind) != MPI_SUCCESS)
        return false;
    bool found = kind == MPI_DIST_GRAPH
                     ? find_in_distributed(comm->data, sources, destinations)
                 : kind == MPI_CART ? find_cartesian(comm->data, sources)
                 : kind == MPI_GRAPH
                     ? find_in_graph(comm->data, comm->rank, sources)
                     : false;
    if (!found)
        return false;
    if (kind != MPI_DIST_GRAPH)
        *destinations = *sources;
    sources->crossed = kind == MPI_CART;
    destinations->crossed = false;
    name_nobody(sources);
    name_nobody(destinations);
    return true;
}

// Each: as MPI tells; memory for `numbers` is there.

static int
clone_cartesian(MPI_Comm user, MPI_Comm base, int *numbers, int ndims,
                MPI_Comm *clone)
{
    int *periods = numbers + ndims, *coordinates = periods + ndims;
    int code = MPI_Cart_get(user, ndims, numbers, periods, coordinates);
    return code != MPI_SUCCESS
               ? code
               : MPI_Cart_create(base, ndims, numbers, periods, 0, clone);
}

static int
clone_graph(MPI_Comm user, MPI_Comm base, int *numbers, int nodes, int edges,
            MPI_Comm *clone)
{
    int *index = numbers, *ends = numbers + nodes;
    int code = MPI_Graph_get(user, nodes, edges, index, ends);
    return code != MPI_SUCCESS
               ? code
               : MPI_Graph_create(base, nodes, index, ends, 0, clone);
}

static int
clone_distributed(MPI_Comm user, MPI_Comm base, int *numbers, int in, int out,
                  MPI_Comm *clone)
{
    int *from = numbers, *weights = from + in;
    int *to = weights + in, *others = to + out;
    int code = MPI_Dist_graph_neighbors(user, in, from, weights, out, to,
                                        others);
    return code != MPI_SUCCESS
               ? code
               : MPI_Dist_graph_create_adjacent(base, in, from, weights, out,
                                                to, others, MPI_INFO_NULL, 0,
                                                clone);
}

// How many numbers tell of it: of each dimension, node or source, and of each
// edge or destination.
static int
measure(MPI_Comm user, int kind, int *first, int *second)
{
    int weighted;
    *second = 0;
    return kind == MPI_CART    ? MPI_Cartdim_get(user, first)
           : kind == MPI_GRAPH ? MPI_Graphdims_get(user, first, second)
                               : MPI_Dist_graph_neighbors_count(
                                   user, first, second, &weighted);
}

int
wm_near_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone, wm_error_t *err)
{
    int kind = MPI_UNDEFINED, rank = 0, first, second;
    int code = MPI_Topo_test(user, &kind);
    if (code == MPI_SUCCESS && kind == MPI_UNDEFINED
        && (code = MPI_Comm_rank(base, &rank)) == MPI_SUCCESS)
        return wm_mpi_check(MPI_Comm_split(base, 0, rank, clone),
                            "MPI_Comm_split", err);
    if (code == MPI_SUCCESS)
        code = measure(user, kind, &first, &second);
    if (code != MPI_SUCCESS)
        return wm_mpi_check(code, "MPI_Topo_test", err);
    int *numbers = calloc(3 * ((size_t)first + (size_t)second) + 1,
                          sizeof *numbers); // weights may be none
    if (numbers == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = kind == MPI_CART
               ? clone_cartesian(user, base, numbers, first, clone)
           : kind == MPI_GRAPH
               ? clone_graph(user, base, numbers, first, second, clone)
               : clone_distributed(user, base, numbers, first, second, clone);
    free(numbers);
    return wm_mpi_check(code, "a communicator with a topology", err);
}
