// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE // gethostname
// How ranks make NCCL's communicator. Each step is begun, and looked at beside
// dead ranks. A thread of its own makes the first calls, which wait for other
// ranks inside NCCL. Meanwhile the ranks tell each other again and again, by
// MPI, how far they are: if one fails, all leave. NCCL's threads inherit the
// cores of the calls that begin them, which are those of the launcher
// (comm/engine/binding.h).
#include "comm/coll/nccl/nccl_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/movers/mover_abort.h"
#include "comm/coll/movers/mover_comm.h"
#include "comm/coll/nccl/nccl_movers.h"
#include "comm/engine/binding.h"
#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "cuda/lock.h"
#include "cuda/memory.h"

#define LOOKS 1
#define ROUND_US 1000                // between two rounds of telling
#define WARM_BYTES ((size_t)4 << 20) // of the longest first call
#define WARM_SHORT 64

// What ranks tell before.
typedef struct {
    int version, rank;
    uint64_t gpu; // and its host, as NCCL knows them
} facts_t;

enum { SOUND = 1, READY = 2 }; // what ranks tell meanwhile

typedef struct {
    wm_mover_comm_t *own;
    enum { JOINING, SPLITTING, WARMING, DONE } state;
    wm_nccl_handle_t *child; // of a split under way
    wm_error_t failure;      // of this rank; code 0: none
    int mine, all;           // bits
    MPI_Request round;
    int64_t told;
    // The thread of the first calls.
    pthread_t thread;
    bool threaded;
    _Atomic int warmed; // 1, or its error
    bool gives;         // wm_mover_comm_end_giving() follows
    wm_error_t thread_failure;
    wm_block_t *room;
} opening_t;

static uint64_t
hash_text(uint64_t before, const char *text)
{
    for (; *text != '\0'; ++text)
        before = wm_hash(before, (uint8_t)*text);
    return before;
}

// Returns the hash of a GPU's place. For NCCL the host is what NCCL_HOSTID
// says, else its name and boot.
static uint64_t
place_of(const wm_device_t *device)
{
    const char *host = getenv("NCCL_HOSTID");
    char name[256] = "", boot[64] = "";
    if (host == NULL || *host == '\0') {
        FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
        (void)!gethostname(name, sizeof name - 1);
        if (file != NULL && fgets(boot, sizeof boot, file) == NULL)
            boot[0] = '\0';
        if (file != NULL)
            fclose(file);
        host = name;
    }
    return hash_text(hash_text(hash_text(WM_HASH_OF_NOTHING, host), boot),
                     device->pci_bus_id);
}

static int
by_place(const void *one, const void *other)
{
    const facts_t *a = one, *b = other;
    return a->gpu != b->gpu ? (a->gpu < b->gpu ? -1 : 1) : a->rank - b->rank;
}

// Judges what the ranks have told: their versions agree, and no two share a
// GPU, which NCCL refuses after all ranks have met. Sorts the facts.
static int
nccl_open_compare(const wm_comm_t *comm, facts_t *all, wm_error_t *err)
{
    for (int rank = 1; rank < comm->size; ++rank)
        if (all[rank].version / 100 != all[0].version / 100)
            return wm_error_set(
                err, WM_ERR_STATE, 0,
                "%s has NCCL %d.%d, and %s %d.%d: install one version on all "
                "hosts",
                wm_comm_name(comm, 0).text, all[0].version / 10000,
                all[0].version / 100 % 100, wm_comm_name(comm, rank).text,
                all[rank].version / 10000, all[rank].version / 100 % 100);
    qsort(all, (size_t)comm->size, sizeof *all, by_place);
    for (int i = 1; i < comm->size; ++i)
        if (all[i].gpu == all[i - 1].gpu)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "%s and %s use one GPU, which NCCL does not "
                                "support: give each "
                                "rank a GPU of its own",
                                wm_comm_name(comm, all[i - 1].rank).text,
                                wm_comm_name(comm, all[i].rank).text);
    return 0;
}

// Agrees that all ranks can make it.
static int
nccl_open_check(wm_comm_t *comm, int device, wm_error_t *err)
{
    facts_t mine = {.rank = comm->rank};
    facts_t *all = malloc((size_t)comm->size * sizeof *all);
    const wm_device_t *gpu = NULL;
    int code = wm_nccl_load(err);
    mine.version = wm_nccl_version();
    if (code == 0 && device < 0)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "this rank has no GPU memory in the call");
    if (code == 0)
        code = wm_device_describe(device, &gpu, err);
    if (code == 0)
        mine.gpu = place_of(gpu);
    if (code == 0 && all == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    facts_t unused; // a rank without memory has failed, and so have all
    code = wm_coll_exchange(comm, "the engine \"nccl\"", code, &mine,
                            sizeof mine, all != NULL ? all : &unused, err);
    if (code == 0)
        code = nccl_open_compare(comm, all, err);
    free(all);
    return code;
}

// Takes rank 0's id, unless a rank has failed. NCCL keeps a thread for an id
// until the ranks have met, so it is made when they are about to.
static int
nccl_open_take_id(wm_comm_t *comm, int code, wm_nccl_id_t *id, wm_error_t *err)
{
    wm_nccl_id_t mine = {{0}};
    wm_nccl_id_t *all = malloc((size_t)comm->size * sizeof *all);
    if (code == 0 && all == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0 && comm->rank == 0)
        code = WM_NCCL(err, GetUniqueId, &mine);
    wm_nccl_id_t unused;
    code = wm_coll_exchange(comm, "the engine \"nccl\"", code, &mine,
                            sizeof mine, all != NULL ? all : &unused, err);
    if (code == 0)
        *id = all[0];
    free(all);
    return code;
}

// Makes the connections of all kinds of calls, with short and long data.
static int
warm_calls(const opening_t *opening, wm_error_t *err)
{
    const wm_mover_comm_t *own = opening->own;
    const wm_comm_t *comm = own->comm;
    char *room = wm_block_pointer(opening->room);
    size_t size = (size_t)comm->size;
    const wm_movers_t *movers = own->movers;
    int code = movers->begin(err);
    for (int peer = 0; peer < comm->size && code == 0; ++peer) {
        if (peer == comm->rank)
            continue;
        code = movers->send(own->handle, room, 1, peer, own->stream, err);
        if (code == 0)
            code = movers->receive(own->handle, room + 1 + peer, 1, peer,
                                   own->stream, err);
    }
    int ended = movers->end(code == 0 ? err : NULL);
    code = code < 0 ? code : ended;
    for (int i = 0; i < 2 && code == 0; ++i) {
        size_t part = i == 0 ? WARM_SHORT : WARM_BYTES / size;
        code = movers->gather(own->handle, room + part * (size_t)comm->rank,
                              room, part, own->stream, err);
        if (code == 0)
            code = movers->broadcast(own->handle, room, part * size, 0,
                                     own->stream, err);
    }
    return code;
}

static void *
warm_run(void *context)
{
    opening_t *opening = context;
    wm_scope_t scope;
    wm_error_t *err = &opening->thread_failure;
    int code = wm_device_enter(opening->own->device, &scope, err);
    if (code == 0) {
        code = warm_calls(opening, err);
        wm_device_leave(&scope);
    }
    atomic_store(&opening->warmed, code == 0 ? 1 : code);
    return NULL;
}

// Begins the first calls, unless memory is being freed: then a later look
// does.
static int
warm_begin(opening_t *opening, wm_error_t *err)
{
    const wm_mover_comm_t *own = opening->own;
    size_t size = (size_t)own->comm->size;
    int code = opening->room == NULL
                   ? wm_block_alloc(own->device,
                                    WARM_BYTES + WARM_SHORT * size,
                                    &opening->room, err)
                   : 0;
    opening->gives = code == 0 && wm_mover_comm_begin_giving();
    if (!opening->gives)
        return code;
    opening->state = WARMING;
    opening->threaded = wm_thread_start(warm_run, opening, &opening->thread);
    return opening->threaded ? 0
                             : wm_error_set(err, WM_ERR_MEMORY, 0,
                                            "no thread can be started");
}

// Returns 1 when the first calls have ended, 0 if not yet.
static int
warm_look(opening_t *opening, wm_error_t *err)
{
    const wm_mover_comm_t *own = opening->own;
    int warmed = atomic_load(&opening->warmed);
    bool idle = false;
    if (warmed < 0)
        *err = opening->thread_failure;
    if (warmed <= 0)
        return warmed;
    int code = wm_stream_idle(own->device, own->stream, &idle, err);
    return code < 0 ? code : idle;
}

static int
nccl_open_join(opening_t *opening, const wm_nccl_id_t *id, wm_error_t *err)
{
    wm_mover_comm_t *own = opening->own;
    const wm_comm_t *comm = own->comm;
    wm_nccl_config_t config = wm_nccl_config(0);
    wm_scope_t scope;
    wm_binding_t binding;
    int code = wm_device_enter(own->device, &scope, err);
    if (code < 0)
        return code;
    wm_binding_widen(&binding);
    wm_nccl_handle_t *parent = NULL;
    code = WM_NCCL(err, CommInitRankConfig, &parent, comm->size, *id,
                   comm->rank, &config);
    own->parent = parent;
    wm_binding_restore(&binding);
    wm_device_leave(&scope);
    return code;
}

// Returns 1 when NCCL is no longer in progress, 0 if it is.
static int
poll_parent(const opening_t *opening, wm_error_t *err)
{
    wm_nccl_result_t state = WM_NCCL_SUCCESS;
    int code = WM_NCCL(err, CommGetAsyncError, opening->own->parent, &state);
    if (code == 0)
        code = wm_nccl_check(state, "ncclCommInitRankConfig", err);
    return code < 0 ? code : state != WM_NCCL_IN_PROGRESS;
}

static int
nccl_open_split(opening_t *opening, wm_error_t *err)
{
    wm_mover_comm_t *own = opening->own;
    wm_nccl_config_t config = wm_nccl_config(1);
    wm_binding_t binding;
    opening->state = SPLITTING;
    wm_binding_widen(&binding);
    int code = WM_NCCL(err, CommSplit, own->parent, 0, own->comm->rank,
                       &opening->child, &config);
    wm_binding_restore(&binding);
    return code;
}

// Goes on as far as possible.
static int
nccl_open_advance(opening_t *opening, wm_error_t *err)
{
    int code = opening->state == WARMING ? warm_look(opening, err)
                                         : poll_parent(opening, err);
    if (code <= 0)
        return code;
    switch (opening->state) {
    case JOINING:
        return nccl_open_split(opening, err);
    case SPLITTING:
        opening->own->handle = opening->child;
        return warm_begin(opening, err);
    default:
        opening->state = DONE;
        return 0;
    }
}

static void
nccl_open_step(opening_t *opening)
{
    const wm_mover_comm_t *own = opening->own;
    wm_scope_t scope;
    wm_error_t err;
    if (opening->failure.code < 0 || opening->state == DONE)
        return;
    int code = wm_device_enter(own->device, &scope, &err);
    if (code == 0) {
        code = nccl_open_advance(opening, &err);
        wm_device_leave(&scope);
    }
    if (code < 0)
        opening->failure = err;
}

// Returns 1 when all ranks are ready, 0 if not yet, or this rank's error.
static int
nccl_open_look(void *context, wm_error_t *err)
{
    opening_t *opening = context;
    int flag = 0;
    nccl_open_step(opening);
    if (opening->round == MPI_REQUEST_NULL) {
        int64_t now = wm_engine_now();
        if (now - opening->told < ROUND_US)
            return 0;
        opening->told = now;
        opening->mine = (opening->failure.code == 0 ? SOUND : 0)
                        | (opening->state == DONE ? READY : 0);
        return wm_mpi_check(
            MPI_Iallreduce(&opening->mine, &opening->all, 1, MPI_INT, MPI_BAND,
                           opening->own->comm->match, &opening->round),
            "MPI_Iallreduce", err);
    }
    int code = wm_mpi_check(
        MPI_Test(&opening->round, &flag, MPI_STATUS_IGNORE), "MPI_Test", err);
    if (code < 0 || !flag)
        return code;
    if ((opening->all & SOUND) != 0)
        return (opening->all & READY) != 0;
    if (opening->failure.code == 0)
        (void)wm_error_set(&opening->failure, WM_ERR_STATE, 0,
                           "another rank could not make NCCL's communicator: "
                           "its error tells why");
    *err = opening->failure;
    return err->code;
}

// NCCL tells the child of a split that has failed, too, and when the parent's
// abort has returned, no later.
static void
nccl_open_abort(opening_t *opening)
{
    wm_mover_comm_t *own = opening->own;
    wm_mover_comm_abort(own);
    if (opening->state == SPLITTING)
        wm_mover_abort_now(own->movers, own->device, opening->child, NULL);
}

// Ends what was begun. After an error the communicator is aborted before.
static void
nccl_open_end(opening_t *opening)
{
    if (opening->threaded)
        pthread_join(opening->thread, NULL);
    if (opening->room != NULL) {
        (void)!wm_stream_synchronize(opening->own->device,
                                     opening->own->stream, NULL);
        wm_block_free(opening->room, 0, NULL, NULL);
    }
    if (opening->gives)
        wm_mover_comm_end_giving();
    if (opening->round == MPI_REQUEST_NULL) // else MPI may yet write
        free(opening);
}

// Makes this rank's part. A rank that cannot begin tells the others.
static int
nccl_open_make(opening_t *opening, const wm_nccl_id_t *id, wm_error_t *err)
{
    wm_comm_t *comm = opening->own->comm;
    if (nccl_open_join(opening, id, err) < 0)
        opening->failure = *err;
    int code = wm_coll_wait(comm, nccl_open_look, opening, LOOKS, err);
    if (code < 0)
        nccl_open_abort(opening);
    nccl_open_end(opening);
    return code;
}

int
wm_nccl_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    wm_nccl_id_t id;
    int code = nccl_open_check(comm, device, err);
    if (code < 0)
        return code;
    opening_t *opening = calloc(1, sizeof *opening);
    wm_mover_comm_t *made = opening != NULL ? wm_mover_comm_new(
                                comm, &wm_nccl_movers, device, err)
                                            : NULL;
    if (opening == NULL)
        (void)wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = nccl_open_take_id(comm, made != NULL ? 0 : err->code, &id, err);
    if (code == 0) {
        opening->own = made;
        opening->round = MPI_REQUEST_NULL;
        code = nccl_open_make(opening, &id, err);
    }
    else
        free(opening);
    if (code == 0) {
        wm_mover_comm_add(made);
        *state = made;
    }
    else if (made != NULL)
        wm_mover_comm_free(made);
    return code;
}
