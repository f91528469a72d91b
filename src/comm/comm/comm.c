// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/comm/bootstrap.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/local_peers.h"
#include "cuda/lock.h"

static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int comm_key = MPI_KEYVAL_INVALID;
static wm_comm_t *attached; // engine lock
static wm_comm_t *freed;    // freed by the user, still in use; engine lock

static void
free_comm(wm_comm_t *comm)
{
    // The end of a rail may tell the ranks of `local`, which is the first one.
    for (int i = WM_LEVELS - 1; i >= 0; --i)
        if (comm->levels.each[i] != NULL)
            free_comm(comm->levels.each[i]);
    WM_EACH_MODULE(drop, comm); // this asks MPI for ranks that died
    bool shared = comm->match == comm->data;
    if (comm->match != MPI_COMM_NULL)
        MPI_Comm_free(&comm->match);
    if (comm->data != MPI_COMM_NULL && !shared)
        MPI_Comm_free(&comm->data);
    if (comm->barrier != NULL) {
        wm_engine_lock();
        wm_barrier_close(comm->barrier);
        wm_engine_unlock();
    }
    for (int i = 0; i < WM_BARRIER_ASIDE; ++i)
        free(comm->aside[i]);
    if (comm->whole != NULL && comm->whole != comm)
        free_comm(comm->whole);
    free(comm->parent_ranks);
    wm_hosts_free(&comm->hosts);
    free(comm->peers);
    free(comm->sequences);
    free(comm->orders);
    free(comm->object_comm);
    free(comm);
}

wm_comm_t *
wm_comm_all(void)
{
    return attached;
}

static void
visit_list(wm_comm_t *list, void (*visit)(wm_comm_t *comm))
{
    for (wm_comm_t *comm = list; comm != NULL; comm = comm->next) {
        visit(comm);
        for (int i = 0; i < WM_LEVELS && comm->levels.open; ++i)
            visit(comm->levels.each[i]);
    }
}

void
wm_comm_each(void (*visit)(wm_comm_t *comm))
{
    visit_list(attached, visit);
    visit_list(freed, visit);
}

// A table of attached ones, each near the place of its handle. Written with
// the engine lock held, read without: whoever looks for a handle does not free
// it meanwhile.
#define PLACES 256
#define NEAR 8
static struct {
    _Atomic(MPI_Comm) user;
    _Atomic(wm_comm_t *) comm;
} places[PLACES];

// Attached ones that are not in the table; MPI's attribute finds them.
static _Atomic int unplaced;

static size_t
place_of(MPI_Comm user, size_t step)
{
    uint64_t mixed = (uint64_t)(uintptr_t)user * 0x9e3779b97f4a7c15u;
    return ((size_t)(mixed >> 32) + step) % PLACES;
}

static wm_comm_t *
look_near(MPI_Comm user)
{
    for (size_t step = 0; step < NEAR; ++step) {
        size_t at = place_of(user, step);
        wm_comm_t *comm = atomic_load(&places[at].comm);
        if (comm != NULL && atomic_load(&places[at].user) == user
            && atomic_load(&places[at].comm) == comm)
            return comm;
    }
    return NULL;
}

// Replaces `before` by `after` in a place near that of a handle. Returns false
// if `before` is in none.
static bool
replace_near(MPI_Comm user, const wm_comm_t *before, wm_comm_t *after)
{
    for (size_t step = 0; step < NEAR; ++step) {
        size_t at = place_of(user, step);
        if (atomic_load(&places[at].comm) != before)
            continue;
        atomic_store(&places[at].user, user);
        atomic_store(&places[at].comm, after);
        return true;
    }
    return false;
}

static void
enlist(wm_comm_t *comm)
{
    wm_engine_lock();
    comm->next = attached;
    attached = comm;
    if (!replace_near(comm->user, NULL, comm))
        atomic_fetch_add(&unplaced, 1);
    wm_engine_unlock();
}

void
wm_comm_retain(wm_comm_t *comm)
{
    atomic_fetch_add(&comm->owner->holders, 1);
}

void
wm_comm_release(wm_comm_t *comm)
{
    atomic_fetch_sub(&comm->owner->holders, 1);
}

const wm_module_t wm_comm_module = {
    .retain = wm_comm_retain,
    .release = wm_comm_release,
};

// Frees the freed ones to which nothing refers any more. MPI_Comm_free does
// not wait for other ranks, whose own messages may go on for longer.
static void
free_unused(void)
{
    wm_comm_t *unused = NULL;
    wm_engine_lock();
    for (wm_comm_t **link = &freed, *comm; (comm = *link) != NULL;) {
        if (atomic_load(&comm->holders) > 0 || wm_modules_is_used(comm)) {
            link = &comm->next;
            continue;
        }
        *link = comm->next;
        comm->next = unused;
        unused = comm;
    }
    wm_engine_unlock();
    while (unused != NULL) {
        wm_comm_t *next = unused->next;
        free_comm(unused);
        unused = next;
    }
}

// Moves a communicator to the freed ones: only operations under way refer to
// it.
static void
strike(wm_comm_t *comm)
{
    wm_engine_lock();
    wm_comm_t **link = &attached;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    if (!replace_near(comm->user, comm, NULL))
        atomic_fetch_sub(&unplaced, 1);
    comm->user = MPI_COMM_NULL;
    comm->next = freed;
    freed = comm;
    wm_engine_unlock();
}

// MPI calls this when the user frees the handle; all ranks are in the same
// call.
static int
on_delete(MPI_Comm user, int key, void *value, void *extra)
{
    (void)user, (void)key, (void)extra;
    wm_comm_t *comm = value;
    if (wm_engine_check(NULL) < 0)
        return MPI_SUCCESS; // in MPI_Finalize, which frees the handles
    void *held = wm_gil_release();
    WM_EACH_MODULE(freed, comm);
    strike(comm);
    free_unused();
    wm_gil_retake(held);
    return MPI_SUCCESS;
}

// Makes the key once, whichever threads attach first.
static int
make_key(wm_error_t *err)
{
    int code = 0, key;
    wm_lock(&key_lock);
    if (comm_key == MPI_KEYVAL_INVALID) {
        code = wm_mpi_check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN,
                                                   on_delete, &key, NULL),
                            "MPI_Comm_create_keyval", err);
        if (code == 0)
            comm_key = key;
    }
    pthread_mutex_unlock(&key_lock);
    return code;
}

wm_comm_t *
wm_comm_find(MPI_Comm user)
{
    void *value = NULL;
    int found = 0;
    if (comm_key == MPI_KEYVAL_INVALID || user == MPI_COMM_NULL)
        return NULL;
    wm_comm_t *comm = look_near(user);
    if (comm != NULL || atomic_load(&unplaced) == 0)
        return comm;
    void *held = wm_gil_release();
    int result = MPI_Comm_get_attr(user, comm_key, &value, &found);
    wm_gil_retake(held);
    return result == MPI_SUCCESS && found ? value : NULL;
}

bool
wm_comm_is_mpis(MPI_Comm user)
{
    const wm_comm_t *comm = wm_comm_find(user);
    return comm == NULL || comm->host_only;
}

static int
make_object_comm(wm_comm_t *comm, wm_error_t *err)
{
    comm->object_comm = malloc(sizeof *comm->object_comm);
    if (comm->object_comm == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *comm->object_comm = *comm;
    comm->object_comm->match = comm->data;
    comm->object_comm->object_comm = NULL;
    return 0;
}

// Makes the communicator of both groups, as MPI merges them: one group after
// the other.
static int
make_whole(wm_comm_t *comm, wm_error_t *err)
{
    wm_comm_t *whole = calloc(1, sizeof *whole);
    int own = 0;
    if (whole == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    comm->whole = whole;
    whole->whole = whole;
    whole->owner = comm;
    whole->user = whole->match = whole->data = MPI_COMM_NULL;
    whole->tag_limit = comm->tag_limit;
    int code = wm_mpi_check(MPI_Intercomm_merge(comm->match, 0, &whole->match),
                            "MPI_Intercomm_merge", err);
    if (code < 0)
        return code;
    MPI_Comm_set_errhandler(whole->match, MPI_ERRORS_RETURN);
    MPI_Comm_size(comm->match, &own);
    MPI_Comm_rank(whole->match, &whole->rank);
    whole->size = own + comm->size;
    whole->split = whole->rank == comm->rank ? own : comm->size;
    code = wm_mpi_duplicate(whole->match, &whole->data, err);
    if (code < 0)
        return code;
    return wm_bootstrap(whole, false, err);
}

wm_ranks_t
wm_comm_group(const wm_comm_t *comm, int rank)
{
    return rank < comm->split
               ? (wm_ranks_t){0, comm->split}
               : (wm_ranks_t){comm->split, comm->size - comm->split};
}

wm_ranks_t
wm_comm_others(const wm_comm_t *comm, int rank)
{
    return wm_comm_group(comm, comm->split == 0     ? rank
                               : rank < comm->split ? comm->split
                                                    : 0);
}

wm_rank_name_t
wm_comm_name(const wm_comm_t *comm, int rank)
{
    wm_rank_name_t name;
    if (comm->parent != NULL)
        return wm_comm_name(comm->parent, comm->parent_ranks[rank]);
    wm_ranks_t group = wm_comm_group(comm, rank);
    bool remote = group.first != wm_comm_group(comm, comm->rank).first;
    snprintf(name.text, sizeof name.text, "rank %d%s", rank - group.first,
             remote ? " of the other group" : "");
    return name;
}

int
wm_comm_damaged(const wm_comm_t *comm, int rank, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the shared segment of %s is damaged",
                        wm_comm_name(comm, rank).text);
}

int
wm_comm_last_number(const wm_comm_t *comm)
{
    return comm->tag_limit / 2;
}

uint32_t
wm_comm_draw_lock_held(wm_comm_t *comm, int rank, uint32_t count)
{
    uint32_t numbers = (uint32_t)wm_comm_last_number(comm) + 1u;
    uint32_t first = comm->sequences[rank] % numbers;
    comm->sequences[rank] += count;
    return first;
}

uint32_t
wm_comm_draw(wm_comm_t *comm, int rank, uint32_t count)
{
    wm_engine_lock();
    uint32_t first = wm_comm_draw_lock_held(comm, rank, count);
    wm_engine_unlock();
    return first;
}

int
wm_comm_attach(MPI_Comm user, wm_comm_t **result, wm_error_t *err)
{
    int code = wm_engine_check_world(err);
    if (code < 0)
        return code;
    wm_comm_t *comm = wm_comm_find(user);
    if (comm != NULL) {
        *result = comm;
        return 0;
    }
    code = make_key(err);
    if (code < 0)
        return code;
    free_unused();
    comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int inter = 0;
    comm->user = user;
    comm->owner = comm;
    comm->match = comm->data = MPI_COMM_NULL;
    code = wm_mpi_check(MPI_Comm_rank(user, &comm->rank), "MPI_Comm_rank",
                        err);
    if (code == 0)
        code = wm_mpi_check(MPI_Comm_test_inter(user, &inter),
                            "MPI_Comm_test_inter", err);
    if (code == 0)
        code = wm_mpi_check(inter ? MPI_Comm_remote_size(user, &comm->size)
                                  : MPI_Comm_size(user, &comm->size),
                            "MPI_Comm_size", err);
    WM_EACH_MODULE(wait_begin, user);
    if (code == 0)
        code = wm_mpi_duplicate(user, &comm->match, err);
    // Collectives of neighbors are begun on `data`.
    if (code == 0)
        code = inter ? wm_mpi_duplicate(comm->match, &comm->data, err)
                     : wm_neighbor_clone(user, comm->match, &comm->data,
                                         &comm->neighbor_rule, err);
    if (code == 0) {
        int *limit = NULL, found = 0;
        MPI_Comm_get_attr(user, MPI_TAG_UB, &limit, &found);
        comm->tag_limit = found ? *limit : 32767;
        code = wm_bootstrap(comm, inter != 0, err);
    }
    if (code == 0 && inter)
        code = make_whole(comm, err);
    else
        comm->whole = comm;
    WM_EACH_MODULE(wait_end);
    if (code == 0)
        code = make_object_comm(comm, err);
    if (code == 0)
        code = wm_engine_start(err);
    if (code == 0) {
        wm_engine_lock();
        wm_engine_count_cores(wm_node_machine_peers(), wm_node_host_peers());
        wm_engine_unlock();
    }
    if (code == 0)
        code = wm_mpi_check(MPI_Comm_set_attr(user, comm_key, comm),
                            "MPI_Comm_set_attr", err);
    if (code < 0) {
        free_comm(comm);
        return code;
    }
    enlist(comm);
    *result = comm;
    return 0;
}

void
wm_comm_keep_error(wm_comm_t *comm, bool receives, int rank, int tag,
                   const wm_error_t *err)
{
    comm = comm->owner;
    if (atomic_load(&comm->is_late))
        return;
    wm_error_set(&comm->late, err->code, err->detail,
                 "an earlier %s rank %d with tag %d failed after the call had "
                 "returned%s: %.300s",
                 receives ? "receive on a stream from" : "send to", rank, tag,
                 receives ? ", and the received data are not valid" : "",
                 err->text);
    atomic_store(&comm->is_late, true);
}

int
wm_comm_raise_kept(wm_comm_t *comm, wm_error_t *err)
{
    comm = comm->owner;
    if (!atomic_load_explicit(&comm->is_late, memory_order_relaxed))
        return 0;
    wm_engine_lock();
    bool late = atomic_exchange(&comm->is_late, false);
    if (late && err != NULL)
        *err = comm->late;
    int code = late ? comm->late.code : 0;
    wm_engine_unlock();
    return code;
}

int
wm_comm_check(const wm_comm_t *comm, const char *argument, int rank, int tag,
              bool receives, wm_error_t *err)
{
    bool known = (rank >= 0 && rank < comm->size) || rank == MPI_PROC_NULL
                 || (receives && rank == MPI_ANY_SOURCE);
    if (!known)
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_RANK,
            "%s=%d is not a rank of this communicator: use 0 "
            "to %d%s%s",
            argument, rank, comm->size - 1,
            receives ? ", ANY_SOURCE or PROC_NULL" : " or PROC_NULL",
            comm->size > 1
                ? ""
                : " (the communicator has one rank: was the program started "
                  "without mpirun, or by the mpirun of another MPI?)");
    if ((tag < 0 || tag > comm->tag_limit)
        && !(receives && tag == MPI_ANY_TAG))
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TAG,
                            "tag=%d is not a tag: use 0 to %d%s", tag,
                            comm->tag_limit, receives ? " or ANY_TAG" : "");
    return 0;
}
