// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/symm_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/preflight.h"
#include "comm/engine/engine.h"

// Data that a rank publishes.
typedef struct {
    wm_place_t place;
    CUuuid device;
    int multiprocessors;
    bool mps;
    int pinned_symm;
} published_t;

int
wm_symm_memory_exchange(wm_comm_t *comm, int code, bool *any, bool *all,
                        wm_error_t *err)
{
    enum { NOT_ANY = 1, ALL = 2 };
    wm_preflight_t preflight = {
        .call = WM_COLL_ON_STREAM,
        .code = code,
        .all = (*any ? 0 : NOT_ANY) | (all != NULL && *all ? ALL : 0),
    };
    code = wm_preflight_run(comm, &preflight, err);
    *any = (preflight.all & NOT_ANY) == 0;
    if (all != NULL)
        *all = (preflight.all & ALL) != 0;
    return code;
}

static int
symm_memory_allocate_on_host(wm_symm_memory_t *symm, const wm_comm_t *comm,
                             published_t *published, char **own,
                             wm_error_t *err)
{
    wm_peer_t *self = comm->peers[comm->rank];
    int code = 0;
    wm_engine_lock();
    published->pinned_symm = symm->pinned_symm = wm_pinned_symm_acquire();
    if (symm->pinned_symm < 0)
        code = wm_error_set(
            err, WM_ERR_MEMORY, 0,
            "%d communicators of this process have symmetric memory in host "
            "memory, and there is no room for more: free one of them",
            WM_PINNED_SYMM_COUNT);
    else
        code = wm_node_register_pinned_symm(self, symm->pinned_symm,
                                            symm->device, err);
    if (code == 0)
        *own = wm_pinned_symm_pointer(self, symm->pinned_symm);
    wm_engine_unlock();
    return code;
}

static int
symm_memory_allocate(wm_symm_memory_t *symm, const wm_comm_t *comm,
                     published_t *published, char **own, wm_error_t *err)
{
    if (symm->on_host)
        return symm_memory_allocate_on_host(symm, comm, published, own, err);
    int code = wm_block_alloc(symm->device, symm->nbytes, &symm->block, err);
    if (code == 0)
        *own = wm_block_pointer(symm->block);
    return code;
}

static bool
symm_memory_export(const wm_symm_memory_t *symm, const char *own,
                   published_t *published)
{
    wm_pointer_t memory;
    if (symm->on_host)
        return true;
    wm_block_describe(symm->block, &memory);
    wm_engine_lock();
    bool exported = wm_place_export(own, &memory, &published->place, NULL)
                    == 0;
    wm_engine_unlock();
    return exported;
}

static int
symm_memory_prepare(wm_symm_memory_t *symm, const wm_comm_t *comm,
                    wm_symm_memory_clear_t clear, published_t *published,
                    bool *unreached, wm_error_t *err)
{
    const wm_device_t *device;
    char *own;
    int code = wm_device_get(symm->device, &device, err);
    if (code == 0)
        code = symm_memory_allocate(symm, comm, published, &own, err);
    if (code == 0)
        code = clear(symm, own, err);
    if (code < 0)
        return code;
    published->device = device->uuid;
    published->multiprocessors = device->multiprocessors;
    published->mps = device->mps;
    symm->ranks[comm->rank].memory = own;
    *unreached = !symm_memory_export(symm, own, published);
    return 0;
}

// Multiprocessors that a kernel leaves free for one of a graph, or of another
// communicator. If GPUs start the two kernels in different orders, a kernel
// would else wait for one that cannot start.
#define SPARE 4

static int
blocks_at_once(const wm_comm_t *comm)
{
    int least = INT_MAX;
    for (int rank = 0; rank < comm->size; ++rank) {
        const published_t *published = wm_preflight_data(comm->barrier, rank);
        int sharers = 0;
        for (int i = 0; i < comm->size; ++i) {
            const published_t *other = wm_preflight_data(comm->barrier, i);
            sharers += memcmp(&published->device, &other->device,
                              sizeof published->device)
                       == 0;
        }
        int blocks = sharers == 1 || published->mps
                         ? published->multiprocessors / sharers
                         : 0;
        least = blocks < least ? blocks : least;
    }
    return least > 2 * SPARE ? least - SPARE : least;
}

static int
are_linked(wm_symm_memory_t *symm, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    bool linked = !symm->on_host;
    for (int rank = 0; rank < comm->size && code == 0 && linked; ++rank) {
        const published_t *published = wm_preflight_data(comm->barrier, rank);
        code = wm_device_is_linked(symm->device, &published->device, &linked,
                                   err);
    }
    symm->linked = linked;
    return code;
}

static int
symm_memory_map_pinned_symm(wm_symm_memory_t *symm, wm_peer_t *peer, int rank,
                            int index, wm_error_t *err)
{
    int code = wm_node_register_pinned_symm(peer, index, symm->device, err);
    if (code == 0)
        symm->ranks[rank].memory = wm_pinned_symm_pointer(peer, index);
    return code;
}

static int
symm_memory_map_place(wm_symm_memory_t *symm, wm_peer_t *peer, int rank,
                      const wm_place_t *place, wm_error_t *err)
{
    wm_mapping_t **mapping = &symm->ranks[rank].mapping;
    int code = wm_mapping_reach(peer, place, symm->device, mapping, err);
    if (code == 0)
        symm->ranks[rank].memory = wm_mapping_at(*mapping, place);
    return code;
}

// Maps the memory of a rank. Sets `damaged`, and fails, if the rank published
// impossible numbers; then no other kind of memory is tried.
static int
symm_memory_map_one(wm_symm_memory_t *symm, const wm_comm_t *comm, int rank,
                    bool *damaged, wm_error_t *err)
{
    const published_t published = *(const published_t *)wm_preflight_data(
        comm->barrier, rank);
    wm_peer_t *peer = comm->peers[rank];
    *damaged = symm->on_host
                   ? published.pinned_symm < 0
                         || published.pinned_symm >= WM_PINNED_SYMM_COUNT
                   : !wm_place_holds(&published.place, symm->nbytes);
    return *damaged        ? wm_comm_damaged(comm, rank, err)
           : symm->on_host ? symm_memory_map_pinned_symm(
                 symm, peer, rank, published.pinned_symm, err)
                           : symm_memory_map_place(symm, peer, rank,
                                                   &published.place, err);
}

static int
symm_memory_map(wm_symm_memory_t *symm, const wm_comm_t *comm, bool *damaged,
                wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (rank != comm->rank)
            code = symm_memory_map_one(symm, comm, rank, damaged, err);
    wm_engine_unlock();
    return code;
}

void
wm_symm_memory_free(wm_symm_memory_t *symm)
{
    if (symm == NULL)
        return;
    wm_engine_lock();
    for (int rank = 0; rank < symm->size; ++rank)
        if (symm->ranks[rank].mapping != NULL)
            wm_mapping_release(symm->ranks[rank].mapping);
    if (symm->pinned_symm >= 0)
        wm_pinned_symm_release(symm->pinned_symm);
    wm_engine_unlock();
    if (symm->block != NULL)
        wm_block_free(symm->block, 0, NULL, NULL);
    free(symm);
}

static int
symm_memory_make(wm_comm_t *comm, wm_symm_memory_t *symm,
                 wm_symm_memory_clear_t clear, bool *unreached,
                 wm_error_t *err)
{
    published_t published = {.pinned_symm = -1};
    wm_preflight_values_t maxima = {.all = 0};
    bool damaged = false;
    int code = symm == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : symm_memory_prepare(symm, comm, clear, &published,
                                         unreached, err);
    code = wm_symm_memory_exchange(comm, code, unreached, NULL, err);
    if (code < 0 || *unreached)
        return code;
    code = wm_preflight_values_exchange(comm, &maxima, &published,
                                        sizeof published, err);
    if (code < 0)
        return code;
    symm->blocks = blocks_at_once(comm);
    code = symm_memory_map(symm, comm, &damaged, err);
    if (code == 0)
        code = are_linked(symm, comm, err);
    if (code < 0 && !damaged && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return wm_symm_memory_exchange(comm, code, unreached, &symm->linked, err);
}

int
wm_symm_memory_make(wm_comm_t *comm, int device, bool on_host, size_t nbytes,
                    wm_symm_memory_clear_t clear, wm_symm_memory_t **made,
                    bool *unreached, wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    wm_symm_memory_t *symm = calloc(1, sizeof *symm
                                           + size * sizeof symm->ranks[0]);
    if (symm != NULL) {
        symm->device = device;
        symm->size = comm->size;
        symm->nbytes = nbytes;
        symm->on_host = on_host;
        symm->pinned_symm = -1;
    }
    *unreached = false;
    int code = symm_memory_make(comm, symm, clear, unreached, err);
    if (code < 0 || *unreached)
        wm_symm_memory_free(symm);
    else
        *made = symm;
    return code;
}
