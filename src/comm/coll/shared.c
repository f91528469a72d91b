// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/shared.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/agreement.h"
#include "comm/engine/engine.h"

// What a rank says of itself.
typedef struct {
    wm_place_t place;
    CUuuid device;
    int multiprocessors;
    bool mps;
    int pinned_symm;
} said_t;

int
wm_shared_tell(wm_comm_t *comm, int code, bool *any, bool *all,
               wm_error_t *err)
{
    wm_agreement_t agreed = {
        .call = WM_CALL_ON_STREAM,
        .code = code,
        .stages = *any,
        .slabs = all != NULL && *all,
    };
    code = wm_agreement_make(comm, &agreed, err);
    *any = agreed.stages;
    if (all != NULL)
        *all = agreed.slabs;
    return code;
}

static int
allocate_on_host(wm_shared_t *shared, const wm_comm_t *comm, said_t *said,
                 char **own, wm_error_t *err)
{
    wm_peer_t *self = comm->peers[comm->rank];
    int code = 0;
    wm_engine_lock();
    said->pinned_symm = shared->pinned_symm = wm_pinned_symm_acquire();
    if (shared->pinned_symm < 0)
        code = wm_error_set(err, WM_ERR_MEMORY, 0,
                            "%d communicators of this process have slabs in "
                            "host memory, which is all there is room for; "
                            "free one",
                            WM_PINNED_SYMM_COUNT);
    else
        code = wm_node_register_pinned_symm(self, shared->pinned_symm,
                                            shared->device, err);
    if (code == 0)
        *own = wm_pinned_symm_pointer(self, shared->pinned_symm);
    wm_engine_unlock();
    return code;
}

static int
allocate(wm_shared_t *shared, const wm_comm_t *comm, said_t *said, char **own,
         wm_error_t *err)
{
    if (shared->on_host)
        return allocate_on_host(shared, comm, said, own, err);
    int code = wm_block_alloc(shared->device, shared->nbytes, &shared->block,
                              err);
    if (code == 0)
        *own = wm_block_pointer(shared->block);
    return code;
}

static bool export(const wm_shared_t *shared, const char *own, said_t *said)
{
    wm_pointer_t memory;
    if (shared->on_host)
        return true;
    wm_block_describe(shared->block, &memory);
    wm_engine_lock();
    bool exported = wm_place_export(own, &memory, &said->place, NULL) == 0;
    wm_engine_unlock();
    return exported;
}

static int
prepare(wm_shared_t *shared, const wm_comm_t *comm, wm_shared_clear_t clear,
        said_t *said, bool *unreached, wm_error_t *err)
{
    const wm_device_t *device;
    char *own;
    int code = wm_device_get(shared->device, &device, err);
    if (code == 0)
        code = allocate(shared, comm, said, &own, err);
    if (code == 0)
        code = clear(shared, own, err);
    if (code < 0)
        return code;
    said->device = device->uuid;
    said->multiprocessors = device->multiprocessors;
    said->mps = device->mps;
    shared->ranks[comm->rank].memory = own;
    *unreached = !export(shared, own, said);
    return 0;
}

// Multiprocessors that one kernel leaves to another, of a graph or of another
// communicator: where ranks' GPUs take the two up in different orders the
// first would else wait for one that cannot begin.
#define SPARE 4

static int
blocks_at_once(const wm_comm_t *comm)
{
    int least = INT_MAX;
    for (int rank = 0; rank < comm->size; ++rank) {
        const said_t *said = wm_agree_said(comm->barrier, rank);
        int sharers = 0;
        for (int i = 0; i < comm->size; ++i) {
            const said_t *other = wm_agree_said(comm->barrier, i);
            sharers += memcmp(&said->device, &other->device,
                              sizeof said->device)
                       == 0;
        }
        int blocks = sharers == 1 || said->mps
                         ? said->multiprocessors / sharers
                         : 0;
        least = blocks < least ? blocks : least;
    }
    return least > 2 * SPARE ? least - SPARE : least;
}

static int
are_linked(wm_shared_t *shared, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    bool linked = !shared->on_host;
    for (int rank = 0; rank < comm->size && code == 0 && linked; ++rank) {
        const said_t *said = wm_agree_said(comm->barrier, rank);
        code = wm_device_is_linked(shared->device, &said->device, &linked,
                                   err);
    }
    shared->linked = linked;
    return code;
}

static int
shared_map_pinned_symm(wm_shared_t *shared, wm_peer_t *peer, int rank,
                       int index, wm_error_t *err)
{
    int code = wm_node_register_pinned_symm(peer, index, shared->device, err);
    if (code == 0)
        shared->ranks[rank].memory = wm_pinned_symm_pointer(peer, index);
    return code;
}

static int
shared_map_place(wm_shared_t *shared, wm_peer_t *peer, int rank,
                 const wm_place_t *place, wm_error_t *err)
{
    wm_mapping_t **mapping = &shared->ranks[rank].mapping;
    int code = wm_mapping_reach(peer, place, shared->device, mapping, err);
    if (code == 0)
        shared->ranks[rank].memory = wm_mapping_at(*mapping, place);
    return code;
}

// Sets `damaged`, and fails, where the rank tells what cannot be: then another
// kind of memory is not tried.
static int
map_one(wm_shared_t *shared, const wm_comm_t *comm, int rank, bool *damaged,
        wm_error_t *err)
{
    const said_t said = *(const said_t *)wm_agree_said(comm->barrier, rank);
    wm_peer_t *peer = comm->peers[rank];
    *damaged = shared->on_host
                   ? said.pinned_symm < 0
                         || said.pinned_symm >= WM_PINNED_SYMM_COUNT
                   : !wm_place_holds(&said.place, shared->nbytes);
    return *damaged ? wm_comm_damaged(comm, rank, err)
           : shared->on_host
               ? shared_map_pinned_symm(shared, peer, rank, said.pinned_symm,
                                        err)
               : shared_map_place(shared, peer, rank, &said.place, err);
}

static int
map(wm_shared_t *shared, const wm_comm_t *comm, bool *damaged, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (rank != comm->rank)
            code = map_one(shared, comm, rank, damaged, err);
    wm_engine_unlock();
    return code;
}

void
wm_shared_free(wm_shared_t *shared)
{
    if (shared == NULL)
        return;
    wm_engine_lock();
    for (int rank = 0; rank < shared->size; ++rank)
        if (shared->ranks[rank].mapping != NULL)
            wm_mapping_release(shared->ranks[rank].mapping);
    if (shared->pinned_symm >= 0)
        wm_pinned_symm_release(shared->pinned_symm);
    wm_engine_unlock();
    if (shared->block != NULL)
        wm_block_free(shared->block, 0, NULL, NULL);
    free(shared);
}

static int
make(wm_comm_t *comm, wm_shared_t *shared, wm_shared_clear_t clear,
     bool *unreached, wm_error_t *err)
{
    said_t said = {.pinned_symm = -1};
    wm_agree_t agree = {{0}};
    bool damaged = false;
    int code = shared == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : prepare(shared, comm, clear, &said, unreached, err);
    code = wm_shared_tell(comm, code, unreached, NULL, err);
    if (code < 0 || *unreached)
        return code;
    code = wm_agree_saying(comm, &agree, &said, sizeof said, err);
    if (code < 0)
        return code;
    shared->blocks = blocks_at_once(comm);
    code = map(shared, comm, &damaged, err);
    if (code == 0)
        code = are_linked(shared, comm, err);
    if (code < 0 && !damaged && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return wm_shared_tell(comm, code, unreached, &shared->linked, err);
}

int
wm_shared_make(wm_comm_t *comm, int device, bool on_host, size_t nbytes,
               wm_shared_clear_t clear, wm_shared_t **made, bool *unreached,
               wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    wm_shared_t *shared = calloc(1, sizeof *shared
                                        + size * sizeof shared->ranks[0]);
    if (shared != NULL) {
        shared->device = device;
        shared->size = comm->size;
        shared->nbytes = nbytes;
        shared->on_host = on_host;
        shared->pinned_symm = -1;
    }
    *unreached = false;
    int code = make(comm, shared, clear, unreached, err);
    if (code < 0 || *unreached)
        wm_shared_free(shared);
    else
        *made = shared;
    return code;
}
