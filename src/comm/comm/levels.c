// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/levels.h"

#include <stdlib.h>

#include "comm/comm/bootstrap.h"
#include "comm/comm/hosts.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"

// Each of these fills the ranks of this rank's level, in its order, and
// returns their number.
typedef int
level_each_t(const wm_hosts_t *hosts, const wm_comm_t *comm, int *ranks);

static int
each_local(const wm_hosts_t *hosts, const wm_comm_t *comm, int *ranks)
{
    int host = hosts->host_of[comm->rank];
    int count = wm_hosts_ranks(hosts, host);
    for (int place = 0; place < count; ++place)
        ranks[place] = wm_hosts_rank(hosts, host, place);
    return count;
}

static int
each_on_rail(const wm_hosts_t *hosts, const wm_comm_t *comm, int *ranks)
{
    int count = 0;
    (void)comm;
    for (int host = 0; host < hosts->count; ++host)
        if (hosts->place < wm_hosts_ranks(hosts, host))
            ranks[count++] = wm_hosts_rank(hosts, host, hosts->place);
    return count;
}

static int
each_of_all(const wm_hosts_t *hosts, const wm_comm_t *comm, int *ranks)
{
    (void)hosts;
    for (int rank = 0; rank < comm->size; ++rank)
        ranks[rank] = rank;
    return comm->size;
}

// Returns a level of these ranks; NULL: out of memory.
static wm_comm_t *
level_new(wm_comm_t *comm, level_each_t *each)
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
    level->size = each(&comm->hosts, comm, ranks);
    while (ranks[level->rank] != comm->rank)
        ++level->rank;
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
                       level != NULL ? level->rank : 0, &made),
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
    wm_error_t later;
    levels->local = level_new(comm, each_local);
    levels->rail = level_new(comm, each_on_rail);
    levels->all = level_new(comm, each_of_all);
    int numbers[WM_LEVELS] = {comm->hosts.first, comm->hosts.place, 0};
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
