// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/levels.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/bootstrap.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"

// Returns the lowest rank on the host of a rank.
static int
first_beside(const wm_comm_t *comm, int rank)
{
    const uint8_t *host = comm->peers[rank]->host;
    int first = 0;
    while (memcmp(comm->peers[first]->host, host, WM_HOST_BYTES) != 0)
        ++first;
    return first;
}

// Returns the number of ranks before `end` on the host of the lowest rank
// `first`.
static int
count_beside(const wm_comm_t *comm, int first, int end)
{
    const uint8_t *host = comm->peers[first]->host;
    int count = 0;
    for (int rank = first; rank < end; ++rank)
        count += memcmp(comm->peers[rank]->host, host, WM_HOST_BYTES) == 0;
    return count;
}

wm_hosts_t
wm_hosts_find(const wm_comm_t *comm)
{
    wm_hosts_t hosts = {.smallest = comm->size};
    if (comm->one_host)
        return (wm_hosts_t){1, comm->size, comm->size, 0, comm->rank};
    for (int rank = 0; rank < comm->size; ++rank) {
        if (first_beside(comm, rank) != rank)
            continue;
        int ranks = count_beside(comm, rank, comm->size);
        ++hosts.count;
        hosts.smallest = ranks < hosts.smallest ? ranks : hosts.smallest;
        hosts.largest = ranks > hosts.largest ? ranks : hosts.largest;
    }
    hosts.first = first_beside(comm, comm->rank);
    hosts.place = count_beside(comm, hosts.first, comm->rank);
    return hosts;
}

typedef bool
level_has_t(const wm_comm_t *comm, const wm_hosts_t *hosts, int rank);

static bool
local_has(const wm_comm_t *comm, const wm_hosts_t *hosts, int rank)
{
    return first_beside(comm, rank) == hosts->first;
}

static bool
rail_has(const wm_comm_t *comm, const wm_hosts_t *hosts, int rank)
{
    return count_beside(comm, first_beside(comm, rank), rank) == hosts->place;
}

static bool
all_has(const wm_comm_t *comm, const wm_hosts_t *hosts, int rank)
{
    (void)comm, (void)hosts, (void)rank;
    return true;
}

// Returns a level of the ranks that it has; NULL: out of memory.
static wm_comm_t *
level_new(wm_comm_t *comm, const wm_hosts_t *hosts, level_has_t *has)
{
    size_t size = (size_t)comm->size;
    wm_comm_t *level = calloc(1, sizeof *level);
    wm_comm_t *object_comm = malloc(sizeof *object_comm);
    int *ranks = calloc(size, sizeof *ranks);
    if (level == NULL || object_comm == NULL || ranks == NULL) {
        free(level);
        free(object_comm);
        free(ranks);
        return NULL;
    }
    *level = (wm_comm_t){
        .user = MPI_COMM_NULL,
        .match = MPI_COMM_NULL,
        .data = MPI_COMM_NULL,
        .tag_limit = comm->tag_limit,
        .object_comm = object_comm,
        .whole = level,
        .owner = comm->owner,
        .parent = comm,
        .parent_ranks = ranks,
    };
    for (int rank = 0; rank < comm->size; ++rank) {
        if (!has(comm, hosts, rank))
            continue;
        if (rank == comm->rank)
            level->rank = level->size;
        ranks[level->size++] = rank;
    }
    *object_comm = *level; // and again when it is connected
    object_comm->object_comm = NULL;
    return level;
}

// Lets the ranks with the same number meet on a communicator of MPI: one, as a
// level has no messages of the user. All ranks come here; one that has failed
// (`level` is NULL) is missing there, so the others fail as well.
static int
level_connect(wm_comm_t *comm, wm_comm_t *level, int number, wm_error_t *err)
{
    MPI_Comm made = MPI_COMM_NULL;
    int size = 0;
    int code = wm_mpi_check(
        MPI_Comm_split(comm->match, level != NULL ? number : MPI_UNDEFINED,
                       comm->rank, &made),
        "MPI_Comm_split", err);
    if (code < 0)
        return code;
    if (level == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    MPI_Comm_size(made, &size);
    level->match = level->data = made;
    if (size < level->size)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "another rank could not make the levels of this "
                            "communicator");
    code = wm_bootstrap(level, false, err);
    *level->object_comm = *level;
    level->object_comm->object_comm = NULL;
    return code;
}

static int
levels_make(wm_comm_t *comm, wm_error_t *err)
{
    wm_levels_t *levels = &comm->levels;
    const wm_hosts_t *hosts = &levels->hosts;
    wm_error_t later;
    levels->hosts = wm_hosts_find(comm);
    levels->local = level_new(comm, hosts, local_has);
    levels->rail = level_new(comm, hosts, rail_has);
    levels->all = level_new(comm, hosts, all_has);
    int numbers[WM_LEVELS] = {hosts->first, hosts->place, 0};
    int code = 0;
    for (int i = 0; i < WM_LEVELS; ++i) { // `all` last: then all ranks know
        int one = level_connect(comm, code == 0 ? levels->each[i] : NULL,
                                numbers[i], code == 0 ? err : &later);
        code = code < 0 ? code : one;
    }
    wm_engine_lock();
    levels->open = code == 0;
    wm_engine_unlock();
    return code;
}

int
wm_levels_open(wm_comm_t *comm, wm_error_t *err)
{
    wm_levels_t *levels = &comm->levels;
    if (levels->code < 0)
        return wm_error_set(err, levels->code, 0,
                            "the levels of this communicator could not be "
                            "made before");
    if (levels->open)
        return 0;
    WM_EACH_MODULE(wait_begin, comm->owner->user);
    levels->code = levels_make(comm, err);
    WM_EACH_MODULE(wait_end);
    return levels->code;
}
