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
allocate(wm_shared_t *shared, int rank, size_t nbytes,
         int (*clear)(int device, char *memory, wm_error_t *err), said_t *said,
         bool *unreached, wm_error_t *err)
{
    wm_pointer_t memory;
    const wm_device_t *device;
    int code = wm_device_get(shared->device, &device, err);
    if (code == 0)
        code = wm_block_alloc(shared->device, nbytes, &shared->block, err);
    if (code < 0)
        return code;
    char *own = wm_block_pointer(shared->block);
    code = clear(shared->device, own, err);
    if (code < 0)
        return code;
    said->device = device->uuid;
    said->multiprocessors = device->multiprocessors;
    said->mps = device->mps;
    shared->ranks[rank].memory = own;
    wm_block_describe(shared->block, &memory);
    wm_engine_lock();
    *unreached = wm_place_export(own, &memory, &said->place, NULL) < 0;
    wm_engine_unlock();
    return 0;
}

static int
blocks_at_once(const wm_comm_t *comm)
{
    int least = INT_MAX;
    for (int rank = 0; rank < comm->size; ++rank) {
        const said_t *said = wm_agree_said(comm->gates, rank);
        int sharers = 0;
        for (int i = 0; i < comm->size; ++i) {
            const said_t *other = wm_agree_said(comm->gates, i);
            sharers += memcmp(&said->device, &other->device,
                              sizeof said->device)
                       == 0;
        }
        int blocks = sharers == 1 || said->mps
                         ? said->multiprocessors / sharers
                         : 0;
        least = blocks < least ? blocks : least;
    }
    return least;
}

static int
are_linked(wm_shared_t *shared, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    bool linked = true;
    for (int rank = 0; rank < comm->size && code == 0 && linked; ++rank) {
        const said_t *said = wm_agree_said(comm->gates, rank);
        code = wm_device_is_linked(shared->device, &said->device, &linked,
                                   err);
    }
    shared->linked = linked;
    return code;
}

static int
map(wm_shared_t *shared, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank) {
        const said_t *said = wm_agree_said(comm->gates, rank);
        wm_mapping_t **mapping = &shared->ranks[rank].mapping;
        if (rank == comm->rank)
            continue;
        code = wm_mapping_reach(comm->peers[rank], &said->place,
                                shared->device, mapping, err);
        if (code == 0)
            shared->ranks[rank].memory = wm_mapping_at(*mapping, &said->place);
    }
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
    wm_engine_unlock();
    if (shared->block != NULL)
        wm_block_free(shared->block, 0, NULL, NULL);
    free(shared);
}

static int
make(wm_comm_t *comm, wm_shared_t *shared, size_t nbytes,
     int (*clear)(int device, char *memory, wm_error_t *err), bool *unreached,
     wm_error_t *err)
{
    said_t said = {.mps = false};
    wm_agree_t agree = {.nbytes = 0};
    int code = shared == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : allocate(shared, comm->rank, nbytes, clear, &said,
                              unreached, err);
    code = wm_shared_tell(comm, code, unreached, NULL, err);
    if (code < 0 || *unreached)
        return code;
    code = wm_agree_saying(comm, &agree, &said, sizeof said, err);
    if (code < 0)
        return code;
    shared->blocks = blocks_at_once(comm);
    code = map(shared, comm, err);
    if (code == 0)
        code = are_linked(shared, comm, err);
    if (code < 0 && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return wm_shared_tell(comm, code, unreached, &shared->linked, err);
}

int
wm_shared_make(wm_comm_t *comm, int device, size_t nbytes,
               int (*clear)(int device, char *memory, wm_error_t *err),
               wm_shared_t **made, bool *unreached, wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    wm_shared_t *shared = calloc(1, sizeof *shared
                                        + size * sizeof shared->ranks[0]);
    if (shared != NULL) {
        shared->device = device;
        shared->size = comm->size;
    }
    *unreached = false;
    int code = make(comm, shared, nbytes, clear, unreached, err);
    if (code < 0 || *unreached)
        wm_shared_free(shared);
    else
        *made = shared;
    return code;
}
