// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm/host_only.h"
#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/engine/hooks.h"
#include "cuda/lock.h"

static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int comm_key = MPI_KEYVAL_INVALID;
static wm_comm_t *attached; // engine lock
static wm_comm_t *freed;    // likewise: by the user, and still in use
static uint64_t made;       // likewise: tried to

static void
free_comm(wm_comm_t *comm)
{
    wm_hooks.drop(comm); // which asks MPI for ranks that died
    for (int i = 0; i < 2; ++i) {
        MPI_Comm *handle = i == 0 ? &comm->match : &comm->data;
        if (*handle != MPI_COMM_NULL)
            MPI_Comm_free(handle);
    }
    if (comm->gates != NULL) {
        wm_engine_lock();
        wm_gates_close(comm->gates);
        wm_engine_unlock();
    }
    for (int i = 0; i < WM_GATE_ASIDE; ++i)
        free(comm->aside[i]);
    if (comm->whole != NULL && comm->whole != comm)
        free_comm(comm->whole);
    free(comm->peers);
    free(comm->sequences);
    free(comm->orders);
    free(comm->parts);
    free(comm);
}

wm_comm_t *
wm_comm_all(void)
{
    return attached;
}

void
wm_comm_each(void (*visit)(wm_comm_t *comm))
{
    for (wm_comm_t *comm = attached; comm != NULL; comm = comm->next)
        visit(comm);
    for (wm_comm_t *comm = freed; comm != NULL; comm = comm->next)
        visit(comm);
}

// Attached ones by their handle, near its place. Written with the engine lock,
// read without: who asks for a handle does not free it meanwhile.
#define PLACES 256
#define NEAR 8
static struct {
    _Atomic(MPI_Comm) user;
    _Atomic(wm_comm_t *) comm;
} places[PLACES];

// Attached ones without a place, which are found by MPI's attribute.
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

static void
enlist(wm_comm_t *comm)
{
    bool placed = false;
    wm_engine_lock();
    comm->next = attached;
    attached = comm;
    for (size_t step = 0; step < NEAR && !placed; ++step) {
        size_t at = place_of(comm->user, step);
        placed = atomic_load(&places[at].comm) == NULL;
        if (placed) {
            atomic_store(&places[at].user, comm->user);
            atomic_store(&places[at].comm, comm);
        }
    }
    if (!placed)
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

// Frees those of the freed that nothing refers to any more. MPI_Comm_free asks
// nothing of other ranks, whose own messages may go on for longer.
static void
free_unused(void)
{
    wm_comm_t *unused = NULL;
    wm_engine_lock();
    for (wm_comm_t **link = &freed, *comm; (comm = *link) != NULL;) {
        if (atomic_load(&comm->holders) > 0 || wm_hooks.is_used(comm)) {
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

// From now on only what has begun refers to it.
static void
strike(wm_comm_t *comm)
{
    wm_engine_lock();
    wm_comm_t **link = &attached;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    bool placed = false;
    for (size_t step = 0; step < NEAR && !placed; ++step) {
        size_t at = place_of(comm->user, step);
        placed = atomic_load(&places[at].comm) == comm;
        if (placed)
            atomic_store(&places[at].comm, NULL);
    }
    if (!placed)
        atomic_fetch_sub(&unplaced, 1);
    comm->user = MPI_COMM_NULL;
    comm->next = freed;
    freed = comm;
    wm_engine_unlock();
}

// The same number on all ranks, who all know rank 0.
static uint64_t
identity(const wm_endpoint_t *first)
{
    uint64_t id = WM_HASH_OF_NOTHING + first->made;
    for (size_t i = 0; i < sizeof first->id; ++i)
        id = wm_hash(id, first->id[i]);
    return id;
}

// The user freed the handle: all ranks are in the same call.
static int
on_delete(MPI_Comm user, int key, void *value, void *extra)
{
    (void)user, (void)key, (void)extra;
    wm_comm_t *comm = value;
    if (wm_engine_check(NULL) < 0)
        return MPI_SUCCESS; // in MPI_Finalize, which frees the handles
    void *held = wm_let_go();
    wm_hooks.freed(comm);
    strike(comm);
    free_unused();
    wm_take_back(held);
    return MPI_SUCCESS;
}

// Once, whichever threads attach first.
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
    void *held = wm_let_go();
    int result = MPI_Comm_get_attr(user, comm_key, &value, &found);
    wm_take_back(held);
    return result == MPI_SUCCESS && found ? value : NULL;
}

bool
wm_comm_is_mpis(MPI_Comm user)
{
    const wm_comm_t *comm = wm_comm_find(user);
    return comm == NULL || comm->host_only;
}

// Offers are answered in the sender's segment: two ranks share memory only
// where each has opened the other's. Two processes settle that once.
static int
settle_segments(wm_comm_t *comm, wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    uint8_t *opened = malloc(2 * size);
    if (opened == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_engine_lock();
    for (size_t i = 0; i < size; ++i)
        opened[i] = comm->peers[i]->segment != NULL;
    wm_engine_unlock();
    int code = wm_mpi_check(MPI_Alltoall(opened, 1, MPI_BYTE, opened + size, 1,
                                         MPI_BYTE, comm->match),
                            "MPI_Alltoall", err);
    wm_engine_lock();
    for (size_t i = 0; i < size && code == 0; ++i) {
        comm->peers[i]->settled = true;
        if (opened[i] && !opened[size + i])
            wm_node_refuse(comm->peers[i],
                           "it cannot open the shared segment of this "
                           "process");
    }
    wm_engine_unlock();
    free(opened);
    return code;
}

// What all ranks must know alike of one another: the least of them counts.
typedef struct {
    int code;    // below 0: a rank cannot go on
    int settled; // 1: the segments of all
    int gates;   // 1: each has one, and can read all others'
} facts_t;

// Of an intercommunicator the first time tells of the other group, the second
// of this one.
static int
agree(const wm_comm_t *comm, bool inter, facts_t *facts, wm_error_t *err)
{
    facts_t least = *facts;
    int code = 0;
    for (int i = 0; i < (inter ? 2 : 1) && code == 0; ++i) {
        code = wm_mpi_check(MPI_Allreduce(facts, &least,
                                          (int)(sizeof least / sizeof(int)),
                                          MPI_INT, MPI_MIN, comm->match),
                            "MPI_Allreduce", err);
        if (code < 0)
            return code;
        *facts = (facts_t){
            least.code < facts->code ? least.code : facts->code,
            least.settled < facts->settled ? least.settled : facts->settled,
            least.gates < facts->gates ? least.gates : facts->gates,
        };
    }
    return code;
}

static void
drop_gates(wm_comm_t *comm)
{
    free(comm->gates);
    comm->gates = NULL;
    for (int room = 0; room < WM_GATE_ASIDE; ++room) {
        free(comm->aside[room]);
        comm->aside[room] = NULL;
    }
}

// False: this rank cannot read those of all.
static bool
find_gates(wm_comm_t *comm, const wm_endpoint_t *all)
{
    wm_gates_t *rooms[WM_GATE_ROOMS] = {NULL};
    bool known = comm->size <= WM_GATE_RANKS;
    for (int rank = 0; rank < comm->size && known; ++rank)
        known = comm->peers[rank]->segment != NULL && all[rank].gate.index >= 0
                && all[rank].gate.index < WM_GATES;
    for (int room = 0; room < WM_GATE_ROOMS && known; ++room) {
        rooms[room] = wm_gates_new(comm->rank, comm->size, room);
        known = rooms[room] != NULL;
        for (int rank = 0; rank < comm->size && known; ++rank)
            wm_gates_set(rooms[room], rank, comm->peers[rank],
                         &all[rank].gate);
    }
    comm->gates = rooms[0];
    memcpy(comm->aside, rooms + 1, sizeof comm->aside);
    if (!known)
        drop_gates(comm);
    return known;
}

static int
refuse_setting(const wm_comm_t *comm, int rank, const char *name, bool mine,
               wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "WARPMPI_%s is set on rank %d and not on rank %d: set "
                        "it on all ranks, or on none",
                        name, mine ? comm->rank : rank,
                        mine ? rank : comm->rank);
}

// Tells every rank of every rank. What is wrong with one is told to all.
static int
exchange(wm_comm_t *comm, bool inter, wm_error_t *err)
{
    wm_endpoint_t mine;
    wm_endpoint_t *all = calloc((size_t)comm->size, sizeof *all);
    wm_error_t setting;
    wm_engine_lock();
    wm_node_describe(&mine);
    mine.made = made++;
    mine.gate.index = -1;
    if (!mine.failed && !inter && comm->size <= WM_GATE_RANKS)
        mine.gate = wm_gate_acquire();
    if (wm_hooks.configure(&setting) < 0) {
        mine.failed = 1;
        wm_error_cut(setting.text, sizeof mine.text, mine.text);
    }
    mine.by_mpi = wm_host_only_by_mpi();
    wm_engine_unlock();
    comm->peers = calloc((size_t)comm->size, sizeof *comm->peers);
    comm->sequences = calloc((size_t)comm->size, sizeof *comm->sequences);
    comm->orders = calloc((size_t)comm->size, sizeof *comm->orders);
    if (all == NULL || comm->peers == NULL || comm->sequences == NULL
        || comm->orders == NULL) {
        free(all); // and a gate is lost
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    int code = wm_mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all,
                                          sizeof mine, MPI_BYTE, comm->match),
                            "MPI_Allgather", err);
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank) {
        const wm_endpoint_t *endpoint = &all[rank];
        if (endpoint->protocol != WM_PROTOCOL
            || strncmp(endpoint->version, mine.version, sizeof mine.version)
                   != 0)
            code = wm_error_set(
                err, WM_ERR_STATE, 0,
                "rank %d runs warpmpi %.15s and rank %d warpmpi %.15s: "
                "install the same version for all ranks",
                rank, endpoint->version, comm->rank, mine.version);
        else if (endpoint->failed)
            code = wm_error_set(err, WM_ERR_STATE, 0,
                                "rank %d cannot take part: %.175s", rank,
                                endpoint->text);
        else if (endpoint->checks != mine.checks)
            code = refuse_setting(comm, rank, "CHECK", mine.checks, err);
        else if (endpoint->by_mpi != mine.by_mpi)
            code = refuse_setting(comm, rank, "HOST_MESSAGES", mine.by_mpi,
                                  err);
        else if ((comm->peers[rank] = wm_node_peer(endpoint)) == NULL)
            code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    wm_engine_unlock();
    comm->id = identity(&all[0]);
    facts_t facts = {.code = code, .settled = code == 0};
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        facts.settled &= comm->peers[rank]->settled;
    facts.gates = code == 0 && facts.settled && !inter
                  && find_gates(comm, all);
    wm_engine_unlock();
    wm_error_t lost;
    int agreed = agree(comm, inter, &facts, code < 0 ? &lost : err);
    if (code == 0 && agreed == 0 && facts.code < 0)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "another rank could not attach to this "
                            "communicator: its error tells why");
    code = code < 0 ? code : agreed;
    if (code == 0 && !facts.settled) {
        code = settle_segments(comm, err);
        drop_gates(comm);
        facts = (facts_t){.code = code};
        wm_engine_lock();
        facts.gates = code == 0 && !inter && find_gates(comm, all);
        wm_engine_unlock();
        if (code == 0 && !inter)
            code = agree(comm, inter, &facts, err);
    }
    if (code < 0 || !facts.gates)
        drop_gates(comm);
    free(all);
    if (comm->gates == NULL && mine.gate.index >= 0) {
        wm_engine_lock();
        wm_gate_release(mine.gate.index);
        wm_engine_unlock();
    }
    return code;
}

static int
make_parts(wm_comm_t *comm, wm_error_t *err)
{
    comm->parts = malloc(sizeof *comm->parts);
    if (comm->parts == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *comm->parts = *comm;
    comm->parts->match = comm->data;
    comm->parts->parts = NULL;
    return 0;
}

// Of both groups, as MPI merges them: one after the other, in their order.
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
    return exchange(whole, false, err);
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
    void *watch = wm_hooks.meet(user);
    if (code == 0)
        code = wm_mpi_duplicate(user, &comm->match, err);
    // Calls of neighbours are begun there.
    if (code == 0)
        code = inter ? wm_mpi_duplicate(comm->match, &comm->data, err)
                     : wm_near_clone(user, comm->match, &comm->data,
                                     &comm->near, err);
    if (code == 0) {
        int *limit = NULL, found = 0;
        MPI_Comm_get_attr(user, MPI_TAG_UB, &limit, &found);
        comm->tag_limit = found ? *limit : 32767;
        code = exchange(comm, inter != 0, err);
    }
    if (code == 0 && inter)
        code = make_whole(comm, err);
    else
        comm->whole = comm;
    wm_hooks.met(watch);
    if (code == 0)
        code = make_parts(comm, err);
    if (code == 0)
        code = wm_engine_start(err);
    if (code == 0)
        wm_engine_count_cores();
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
                 "an earlier %s rank %d with tag %d, failed after it had "
                 "returned%s: %.300s",
                 receives ? "receive on a stream, of the message from"
                          : "send, of the message to",
                 rank, tag,
                 receives ? ", and what it received is not valid" : "",
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
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RANK,
                            "%s=%d is not a rank of this communicator: use 0 "
                            "to %d%s%s",
                            argument, rank, comm->size - 1,
                            receives ? ", ANY_SOURCE or PROC_NULL"
                                     : " or PROC_NULL",
                            comm->size > 1 ? ""
                                           : " (it is of one rank: was mpirun "
                                             "forgotten, or another MPI's?)");
    if ((tag < 0 || tag > comm->tag_limit)
        && !(receives && tag == MPI_ANY_TAG))
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TAG,
                            "tag=%d is not a tag: use 0 to %d%s", tag,
                            comm->tag_limit, receives ? " or ANY_TAG" : "");
    return 0;
}
