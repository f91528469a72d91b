// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/target.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/direct/preflight.h"
#include "comm/diagnostics/wait.h"
#include "comm/engine/engine.h"
#include "comm/rma/target_access.h"
#include "comm/rma/target_state.h"
#include "comm/rma/update.h"

#define FIRST_TAG WM_TARGET_PARTS // below: WM_TARGET_ASKED
#define LOOKS 50

void
wm_target_retain(wm_target_t *target)
{
    atomic_fetch_add(&target->references, 1);
}

void
wm_target_release(wm_target_t *target)
{
    if (atomic_fetch_sub(&target->references, 1) != 1)
        return;
    wm_engine_lock();
    wm_target_forget_keys(target);
    wm_engine_unlock();
    for (int rank = 0; rank < target->comm.size; ++rank)
        free(target->ranks[rank].failure);
    if (target->device >= 0)
        wm_stream_release(target->device, target->stream);
    wm_comm_release(target->of);
    free(target->memory);
    free(target);
}

int
wm_target_tag(const wm_target_t *target, uint32_t number,
              wm_target_part_t part)
{
    return (int)(FIRST_TAG + number % target->numbers * WM_TARGET_PARTS
                 + part);
}

int
wm_target_device(const wm_pointer_t *memory)
{
    return wm_memory_on_device(memory) ? memory->device : -1;
}

bool
wm_target_has_ended(const wm_op_t *message)
{
    return wm_op_has_left(message) || wm_op_is_ended(message);
}

bool
wm_target_conflict(const wm_target_request_t *a, const wm_target_request_t *b)
{
    if (a->kind > WM_TARGET_COMPARE || b->kind > WM_TARGET_COMPARE
        || a->words > 0 || b->words > 0)
        return true;
    bool reads = a->kind == WM_TARGET_GET && b->kind == WM_TARGET_GET;
    return !reads
           && (a->at <= b->at ? b->at - a->at < a->nbytes
                              : a->at - b->at < b->nbytes);
}

// Returns the first region that begins behind a place.
static int
target_region_behind(const wm_target_t *target, uint64_t at)
{
    int region = 0;
    while (region < target->regions && target->memory[region].at <= at)
        ++region;
    return region;
}

const wm_target_memory_t *
wm_target_find(const wm_target_t *target, uint64_t at, uint64_t nbytes)
{
    int behind = target_region_behind(target, at);
    const wm_target_memory_t *region = behind > 0 ? &target->memory[behind - 1]
                                                  : NULL;
    bool has = region != NULL && nbytes <= region->nbytes
               && at - region->at <= region->nbytes - nbytes;
    return has ? region : NULL;
}

static int
target_refuse_attach(const char *why, uint64_t at, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_ATTACH,
                        "memory at %#llx %s", (unsigned long long)at, why);
}

static int
target_insert_lock_held(wm_target_t *target, const wm_target_memory_t *memory,
                        wm_error_t *err)
{
    int place = target_region_behind(target, memory->at);
    const wm_target_memory_t *before = place > 0 ? &target->memory[place - 1]
                                                 : NULL;
    bool over = before != NULL && memory->at - before->at < before->nbytes;
    if (place < target->regions)
        over |= target->memory[place].at - memory->at < memory->nbytes;
    if (over)
        return target_refuse_attach("overlaps memory that is attached: detach "
                                    "that first",
                                    memory->at, err);
    wm_target_memory_t *regions = realloc(
        target->memory, ((size_t)target->regions + 1) * sizeof *regions);
    if (regions == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    target->memory = regions;
    memmove(&regions[place + 1], &regions[place],
            (size_t)(target->regions - place) * sizeof *regions);
    regions[place] = *memory;
    ++target->regions;
    return 0;
}

// Takes the stream of updates, for the first region of device memory.
static int
target_open_stream(wm_target_t *target, const wm_pointer_t *memory,
                   wm_error_t *err)
{
    if (wm_target_device(memory) < 0 || target->device == memory->device)
        return 0;
    if (target->device >= 0)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "a window's memory of one rank lies on cuda:%d "
                            "and cuda:%d: use one GPU",
                            target->device, memory->device);
    int code = wm_stream_acquire(memory->device, &target->stream, err);
    if (code == 0)
        target->device = memory->device;
    return code;
}

int
wm_target_attach(wm_target_t *target, const wm_target_memory_t *memory,
                 wm_error_t *err)
{
    int code = wm_update_prepare(wm_target_device(&memory->memory), err);
    if (code < 0)
        return code;
    wm_engine_lock();
    code = target_open_stream(target, &memory->memory, err);
    if (code == 0)
        code = target_insert_lock_held(target, memory, err);
    wm_engine_unlock();
    return code;
}

// Memory that is detached, and whose requests under way are waited for.
typedef struct {
    const wm_target_t *target;
    wm_target_memory_t memory;
} detached_t;

static int
target_look_at_detached(void *context, wm_error_t *err)
{
    const detached_t *detached = context;
    (void)err;
    return !wm_serving_any_uses(detached->target, &detached->memory);
}

int
wm_target_detach(wm_target_t *target, uint64_t at, wm_error_t *err)
{
    detached_t detached = {.target = target};
    wm_engine_lock();
    int place = target_region_behind(target, at) - 1;
    bool found = place >= 0 && target->memory[place].at == at;
    if (found) {
        detached.memory = target->memory[place];
        --target->regions;
        memmove(&target->memory[place], &target->memory[place + 1],
                (size_t)(target->regions - place) * sizeof *target->memory);
    }
    bool used = found && wm_serving_any_uses(target, &detached.memory);
    wm_engine_unlock();
    if (!found)
        return target_refuse_attach("was not attached, or no attached memory "
                                    "begins there",
                                    at, err);
    return used ? wm_coll_wait(target->of, target_look_at_detached, &detached,
                               0, err)
                : 0;
}

// Makes the communicator of the target's messages: that of the window, with
// another `match`. What lower modules keep in it is its own.
static void
target_set_comm(wm_target_t *target, wm_comm_t *of)
{
    wm_comm_t *comm = &target->comm;
    *comm = *of;
    comm->next = NULL;
    comm->match = MPI_COMM_NULL;
    comm->object_comm = NULL;
    comm->unexpected = NULL;
    comm->pending_sends = NULL;
    comm->partitioned = NULL;
    comm->nonblocking = NULL;
    comm->symm = comm->graph_symm = NULL;
    target->numbers = (uint32_t)(comm->tag_limit - FIRST_TAG) / WM_TARGET_PARTS
                      - 1;
}

static int
target_new(wm_comm_t *of, wm_target_t **result, wm_error_t *err)
{
    size_t ranks = (size_t)of->size * sizeof *(*result)->ranks;
    if (of->whole != of)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_COMM,
                            "a window has no intercommunicator: merge it "
                            "first (Intercomm.Merge)");
    wm_target_t *target = calloc(1, sizeof *target + ranks);
    if (target == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    atomic_store(&target->references, 1);
    wm_comm_retain(of);
    target->of = of;
    target->device = -1;
    target->asking = MPI_REQUEST_NULL;
    target_set_comm(target, of);
    *result = target;
    return 0;
}

static int
target_look_at_end(void *context, wm_error_t *err)
{
    const wm_target_t *target = context;
    (void)err;
    return target->serving == 0 && target->server == NULL;
}

// Waits until links of other ranks do not access our memory any more.
// `failed`: some may still have begun to.
static void
target_conceal(wm_target_t *target, bool failed)
{
    bool concealed = false;
    for (unsigned turn = 1; !concealed; ++turn) {
        if (turn > 1)
            wm_engine_turn(turn);
        wm_engine_lock();
        concealed = wm_target_conceal(target, failed);
        wm_engine_unlock();
    }
}

// Waits until no operation uses the target, and frees it with its
// communicator. `failed`: some ranks may not have ended their operations.
static int
target_end(wm_target_t *target, bool failed, wm_error_t *err)
{
    wm_target_serve_end(target);
    target_conceal(target, failed);
    int code = wm_coll_wait(target->of, target_look_at_end, target, LOOKS,
                            err);
    if (code == 0 && target->comm.match != MPI_COMM_NULL)
        MPI_Comm_free(&target->comm.match);
    wm_target_release(target);
    return code;
}

// Gives all ranks the keys by which their links access the memory of the
// others; `each` has the lengths of all keys.
static int
target_exchange_keys(wm_target_t *target, const uint32_t *each, int code,
                     wm_error_t *err)
{
    wm_comm_t *comm = target->of;
    size_t room = 0;
    for (int rank = 0; rank < comm->size; ++rank)
        room = each[rank] > room ? each[rank] : room;
    char *all = room > 0 ? calloc((size_t)comm->size + 1, room) : NULL;
    if (code == 0 && room > 0 && all == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    char *mine = all != NULL ? all + (size_t)comm->size * room : NULL;
    if (mine != NULL && each[comm->rank] > 0)
        wm_target_write_key(target, mine);
    code = wm_coll_exchange(comm, WM_TARGET_CALL, code, mine, room, all, err);
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (each[rank] > 0 && rank != comm->rank)
            wm_target_keep_key(target, rank, all + (size_t)rank * room,
                               each[rank]);
    free(all);
    return code;
}

// Makes what the ranks need of each other. If one fails, all raise, if MPI
// does not fail apart.
static int
target_exchange(wm_target_t *target, wm_comm_t *comm,
                const wm_target_memory_t *memory, int code, wm_error_t *err)
{
    uint32_t mine = 0;
    uint32_t *each = calloc((size_t)comm->size, sizeof *each);
    if (code == 0 && each == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0 && memory != NULL) {
        wm_engine_lock();
        mine = wm_target_expose_memory(target, memory);
        wm_engine_unlock();
    }
    code = wm_coll_exchange(comm, WM_TARGET_CALL, code, &mine, sizeof mine,
                            each, err);
    if (code == 0) {
        code = wm_mpi_duplicate(comm->match, &target->comm.match, err);
        if (code == 0)
            code = wm_target_serve(target, err);
        code = target_exchange_keys(target, each, code, err);
    }
    free(each);
    return code;
}

int
wm_target_expose(wm_comm_t *comm, const wm_target_memory_t *memory,
                 wm_window_words_t *words, wm_target_t **result,
                 wm_error_t *err)
{
    wm_target_t *target = NULL;
    int code = target_new(comm, &target, err);
    if (code == 0)
        target->words = words;
    if (code == 0 && memory != NULL)
        code = wm_target_attach(target, memory, err);
    code = target_exchange(target, comm, memory, code, err);
    if (code < 0) {
        if (target != NULL)
            target_end(target, true, NULL);
        return code;
    }
    *result = target;
    return 0;
}

int
wm_target_withdraw(wm_target_t *target, wm_error_t *err)
{
    wm_op_t *flush;
    wm_comm_t *of = target->of;
    int code = wm_target_flush(target, -1, &flush, err);
    if (code == 0) {
        code = wm_op_wait(flush, NULL, err);
        wm_op_release(flush);
    }
    // Then no rank asks any more.
    int told = wm_preflight_tell(of, WM_COLL_BARRIER, code, err);
    int ended = target_end(target, told < 0, told == 0 ? err : NULL);
    return told < 0 ? told : ended;
}
