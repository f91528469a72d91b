// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/neighbor.h"

#include <stdlib.h>
#include <string.h>

#include "comm/engine/posted.h"

int
wm_neighbor_parts(const wm_neighbors_t *neighbors, int size,
                  wm_neighbor_block_t *parts)
{
    int count = 0;
    for (int rank = 0; rank < size; ++rank) {
        int before = count;
        for (int i = 0; i < neighbors->count; ++i) {
            int block = neighbors->crossed ? i ^ 1 : i;
            if (neighbors->ranks[block] == rank)
                parts[count++] = (wm_neighbor_block_t){rank, block};
        }
        if (count == before)
            parts[count++] = (wm_neighbor_block_t){rank, -1};
    }
    return count;
}

// A topology as MPI describes it, and the neighbors of this rank.
typedef struct {
    int kind;
    // Number of dimensions; numbers of nodes and edges; or numbers of sources
    // and destinations.
    int first, second;
    int *numbers; // arrays that MPI returns, one after the other
    int in, out;  // numbers of neighbors
    int *sources, *destinations;
    int *zeros; // weights, all 0
} topology_t;

// Each function reads a topology into memory that is allocated.

static int
read_cartesian(MPI_Comm user, topology_t *topology)
{
    int ndims = topology->first;
    int code = MPI_Cart_get(user, ndims, topology->numbers,
                            topology->numbers + ndims,
                            topology->numbers + 2 * ndims);
    for (int i = 0; i < ndims && code == MPI_SUCCESS; ++i)
        code = MPI_Cart_shift(user, i, 1, &topology->sources[2 * i],
                              &topology->sources[2 * i + 1]);
    topology->in = 2 * ndims;
    return code;
}

static int
read_graph(MPI_Comm user, int rank, topology_t *topology)
{
    int *index = topology->numbers, *ends = index + topology->first;
    int code = MPI_Graph_get(user, topology->first, topology->second, index,
                             ends);
    if (code != MPI_SUCCESS)
        return code;
    int begin = rank > 0 && rank < topology->first ? index[rank - 1] : 0;
    topology->in = rank < topology->first ? index[rank] - begin : 0;
    memcpy(topology->sources, ends + begin,
           (size_t)topology->in * sizeof *ends);
    return MPI_SUCCESS;
}

static int
read_distributed(MPI_Comm user, topology_t *topology)
{
    topology->in = topology->first;
    topology->out = topology->second;
    return MPI_Dist_graph_neighbors(user, topology->in, topology->sources,
                                    topology->numbers, topology->out,
                                    topology->destinations,
                                    topology->numbers + topology->in);
}

static int
neighbor_measure(MPI_Comm user, topology_t *topology)
{
    int weighted;
    topology->second = 0;
    return topology->kind == MPI_CART ? MPI_Cartdim_get(user, &topology->first)
           : topology->kind == MPI_GRAPH
               ? MPI_Graphdims_get(user, &topology->first, &topology->second)
               : MPI_Dist_graph_neighbors_count(user, &topology->first,
                                                &topology->second, &weighted);
}

// Reads the topology. free(topology->numbers) frees the result.
static int
read_topology(MPI_Comm user, int rank, topology_t *topology, wm_error_t *err)
{
    int code = neighbor_measure(user, topology);
    if (code != MPI_SUCCESS)
        return wm_mpi_check(code, "MPI_Topo_test", err);
    size_t count = 3 * ((size_t)topology->first + (size_t)topology->second);
    topology->numbers = calloc(4 * count + 1, sizeof *topology->numbers);
    if (topology->numbers == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    topology->sources = topology->numbers + count;
    topology->destinations = topology->sources + count;
    topology->zeros = topology->destinations + count;
    code = topology->kind == MPI_CART    ? read_cartesian(user, topology)
           : topology->kind == MPI_GRAPH ? read_graph(user, rank, topology)
                                         : read_distributed(user, topology);
    if (topology->kind != MPI_DIST_GRAPH) {
        topology->destinations = topology->sources;
        topology->out = topology->in;
    }
    return wm_mpi_check(code, "MPI_Topo_test", err);
}

static void
name_neighbors(const int *ranks, int count, bool crossed,
               wm_neighbors_t *neighbors)
{
    neighbors->count = count;
    neighbors->crossed = crossed;
    for (int i = 0; i < count; ++i)
        neighbors->ranks[i] = ranks[i] != MPI_PROC_NULL ? ranks[i] : -1;
}

bool
wm_neighbor_find(MPI_Comm user, int size, wm_neighbors_t *sources,
                 wm_neighbors_t *destinations)
{
    topology_t topology = {.kind = MPI_UNDEFINED};
    int rank = 0;
    if (size > WM_BARRIER_RANKS
        || MPI_Topo_test(user, &topology.kind) != MPI_SUCCESS
        || topology.kind == MPI_UNDEFINED
        || MPI_Comm_rank(user, &rank) != MPI_SUCCESS)
        return false;
    bool found = read_topology(user, rank, &topology, NULL) == 0
                 && topology.in <= WM_BARRIER_RANKS
                 && topology.out <= WM_BARRIER_RANKS;
    if (found) {
        name_neighbors(topology.sources, topology.in,
                       topology.kind == MPI_CART, sources);
        name_neighbors(topology.destinations, topology.out, false,
                       destinations);
    }
    free(topology.numbers);
    return found;
}

static int
compare_ranks(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;
    return (a > b) - (a < b);
}

// Sorts the ranks, leaves each once, and drops MPI_PROC_NULL. Returns how
// many.
static int
take_once(int *ranks, int count)
{
    int taken = 0;
    if (count > 1)
        qsort(ranks, (size_t)count, sizeof *ranks, compare_ranks);
    for (int i = 0; i < count; ++i)
        if (ranks[i] != MPI_PROC_NULL
            && (taken == 0 || ranks[i] != ranks[taken - 1]))
            ranks[taken++] = ranks[i];
    return taken;
}

static bool
has_twice(const int *ranks, int count, int *sorted)
{
    int nobody = 0;
    for (int i = 0; i < count; ++i)
        nobody += ranks[i] == MPI_PROC_NULL;
    memcpy(sorted, ranks, (size_t)count * sizeof *ranks);
    return take_once(sorted, count) < count - nobody;
}

// The kinds of a rank's own neighbors. Each kind needs more of our help than
// the one before.
typedef enum {
    NEIGHBOR_PLAIN,
    NEIGHBOR_TWICE,
    NEIGHBOR_NOT_FOR_MPI
} neighbor_kind_t;

static neighbor_kind_t
kind_of_cartesian(const topology_t *topology)
{
    for (int i = 0; i < topology->first; ++i)
        if (topology->numbers[topology->first + i] // periodic
            && topology->numbers[i] <= 2)
            return NEIGHBOR_TWICE;
    return NEIGHBOR_PLAIN;
}

// All ranks know a graph, and find the same.
static neighbor_kind_t
kind_of_graph(const topology_t *topology, int *scratch)
{
    const int *index = topology->numbers, *ends = index + topology->first;
    for (int i = 0, begin = 0; i < topology->first; begin = index[i++])
        if (has_twice(ends + begin, index[i] - begin, scratch))
            return NEIGHBOR_TWICE;
    return NEIGHBOR_PLAIN;
}

// A rank knows its own neighbors only.
static neighbor_kind_t
kind_of_distributed(const topology_t *topology, int *scratch)
{
    for (int i = 0; i < topology->in; ++i)
        if (topology->sources[i] == MPI_PROC_NULL)
            return NEIGHBOR_NOT_FOR_MPI;
    for (int i = 0; i < topology->out; ++i)
        if (topology->destinations[i] == MPI_PROC_NULL)
            return NEIGHBOR_NOT_FOR_MPI;
#ifdef OPEN_MPI
    // Open MPI does nothing if either count is 0, which mpi4py passes for no
    // blocks.
    if ((topology->in == 0) != (topology->out == 0))
        return NEIGHBOR_NOT_FOR_MPI;
#endif
    return has_twice(topology->sources, topology->in, scratch)
                   || has_twice(topology->destinations, topology->out, scratch)
               ? NEIGHBOR_TWICE
               : NEIGHBOR_PLAIN;
}

// Makes a topology in which this rank alone is its own neighbor four times:
// twice in each of two dimensions, or in a graph.
static int
make_own(int kind, MPI_Comm *comm)
{
    const int ones[] = {1, 1}, zeros[] = {0, 0, 0, 0}, four = 4;
    return kind == MPI_CART
               ? MPI_Cart_create(MPI_COMM_SELF, 2, ones, ones, 0, comm)
           : kind == MPI_GRAPH
               ? MPI_Graph_create(MPI_COMM_SELF, 1, &four, zeros, 0, comm)
               : MPI_Dist_graph_create_adjacent(MPI_COMM_SELF, 4, zeros, zeros,
                                                4, zeros, zeros, MPI_INFO_NULL,
                                                0, comm);
}

// Returns true if MPI's blocking calls place the blocks as the standard says
// for a rank whose neighbors are all itself. Every MPI that we know that is
// right for one rank is right for two.
static bool
measure_places(int kind)
{
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Datatype types[] = {MPI_INT, MPI_INT, MPI_INT, MPI_INT};
    const int sent[] = {1, 2, 3, 4}, ones[] = {1, 1, 1, 1};
    const int at[] = {0, 1, 2, 3};
    const MPI_Aint bytes_at[] = {0, sizeof(int), 2 * sizeof(int),
                                 3 * sizeof(int)};
    int got[3][4] = {{0}};
    if (make_own(kind, &comm) != MPI_SUCCESS)
        return false;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    bool right = MPI_Neighbor_alltoall(sent, 1, MPI_INT, got[0], 1, MPI_INT,
                                       comm)
                     == MPI_SUCCESS
                 && MPI_Neighbor_alltoallv(sent, ones, at, MPI_INT, got[1],
                                           ones, at, MPI_INT, comm)
                        == MPI_SUCCESS
                 && MPI_Neighbor_alltoallw(sent, ones, bytes_at, types, got[2],
                                           ones, bytes_at, types, comm)
                        == MPI_SUCCESS;
    MPI_Comm_free(&comm);
    for (int i = 0; i < 12; ++i)
        right &= got[i / 4][i % 4]
                 == sent[kind == MPI_CART ? i % 4 ^ 1 : i % 4];
    return right;
}

// Returns true if this MPI misplaces blocks. Measured once for each kind; two
// threads find the same.
static bool
are_misplaced(int kind)
{
    static _Atomic int known[3]; // 0: not yet, 1: right, 2: wrong
    _Atomic int *one = &known[kind == MPI_CART    ? 0
                              : kind == MPI_GRAPH ? 1
                                                  : 2];
    if (*one == 0)
        *one = measure_places(kind) ? 1 : 2;
    return *one == 2;
}

// Finds the rule. Collective over `base` if the topology is distributed.
static int
find_rule(const topology_t *topology, MPI_Comm base, wm_neighbor_rule_t *rule,
          wm_error_t *err)
{
    size_t most = (size_t)topology->first + (size_t)topology->second;
    int *scratch = malloc((2 * most + 1) * sizeof *scratch);
    neighbor_kind_t worst = NEIGHBOR_PLAIN;
    int code = 0;
    if (scratch == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (topology->kind == MPI_CART)
        worst = kind_of_cartesian(topology);
    else if (topology->kind == MPI_GRAPH)
        worst = kind_of_graph(topology, scratch);
    else {
        int own = (int)kind_of_distributed(topology, scratch), all = own;
        code = wm_mpi_check(
            MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MAX, base),
            "MPI_Allreduce", err);
        worst = (neighbor_kind_t)all;
    }
    free(scratch);
    rule->paired = worst != NEIGHBOR_PLAIN;
    rule->misplaces = worst == NEIGHBOR_NOT_FOR_MPI
                      || (worst == NEIGHBOR_TWICE
                          && are_misplaced(topology->kind));
    return code;
}

// Reads the topology of `user`, and finds its rule; kind MPI_UNDEFINED: there
// is none. Collective over `base`, of the same ranks, if it is distributed.
// free(topology->numbers) frees the result, also after a failure.
static int
look_at_topology(MPI_Comm user, MPI_Comm base, topology_t *topology,
                 wm_neighbor_rule_t *rule, wm_error_t *err)
{
    int rank = 0;
    *topology = (topology_t){.kind = MPI_UNDEFINED};
    *rule = (wm_neighbor_rule_t){false, false};
    int code = wm_mpi_check(MPI_Topo_test(user, &topology->kind),
                            "MPI_Topo_test", err);
    if (code == 0)
        code = wm_mpi_check(MPI_Comm_rank(base, &rank), "MPI_Comm_rank", err);
    if (code < 0 || topology->kind == MPI_UNDEFINED)
        return code;
    code = read_topology(user, rank, topology, err);
    return code < 0 ? code : find_rule(topology, base, rule, err);
}

int
wm_neighbor_is_paired(MPI_Comm user, wm_error_t *err)
{
    topology_t topology;
    wm_neighbor_rule_t rule;
    int code = look_at_topology(user, user, &topology, &rule, err);
    free(topology.numbers);
    return code < 0 ? code : rule.paired;
}

static int
clone_distributed(MPI_Comm base, int in, const int *sources,
                  const int *in_weights, int out, const int *destinations,
                  const int *out_weights, MPI_Comm *clone)
{
    return MPI_Dist_graph_create_adjacent(base, in, sources, in_weights, out,
                                          destinations, out_weights,
                                          MPI_INFO_NULL, 0, clone);
}

static int
clone_once(const topology_t *topology, MPI_Comm base, MPI_Comm *clone)
{
    int *to = topology->numbers; // the numbers are no longer needed
    memcpy(to, topology->destinations, (size_t)topology->out * sizeof *to);
    int in = take_once(topology->sources, topology->in);
    int out = take_once(to, topology->out);
    return clone_distributed(base, in, topology->sources, topology->zeros, out,
                             to, topology->zeros, clone);
}

static int
clone_as_it_is(const topology_t *topology, MPI_Comm base, MPI_Comm *clone)
{
    const int *numbers = topology->numbers;
    int first = topology->first;
    return topology->kind == MPI_CART ? MPI_Cart_create(
               base, first, numbers, numbers + first, 0, clone)
           : topology->kind == MPI_GRAPH
               ? MPI_Graph_create(base, first, numbers, numbers + first, 0,
                                  clone)
               : clone_distributed(base, topology->in, topology->sources,
                                   numbers, topology->out,
                                   topology->destinations,
                                   numbers + topology->in, clone);
}

int
wm_neighbor_clone(MPI_Comm user, MPI_Comm base, MPI_Comm *clone,
                  wm_neighbor_rule_t *rule, wm_error_t *err)
{
    topology_t topology;
    int code = look_at_topology(user, base, &topology, rule, err);
    if (code == 0 && topology.kind == MPI_UNDEFINED)
        return wm_mpi_duplicate(base, clone, err);
    if (code == 0)
        code = wm_mpi_check(rule->paired
                                ? clone_once(&topology, base, clone)
                                : clone_as_it_is(&topology, base, clone),
                            "making a communicator with a topology", err);
    if (code == 0)
        MPI_Comm_set_errhandler(*clone, MPI_ERRORS_RETURN);
    free(topology.numbers);
    return code;
}
