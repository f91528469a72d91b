// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/symm_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/node/sharers.h"

// The facts that a rank gives of its memory, and then of its mappings of the
// others'.
typedef struct {
    wm_rkey_t place;
    CUuuid device;
    int multiprocessors;
    uint16_t others; // processes outside of the group that use them, too
    bool mps;
    int pinned_symm;
    int file;
    bool has_gpu, unreached;
    uint64_t nbytes;
} told_t;

typedef struct {
    bool unreached; // the rank does not reach the memory of all others
    bool linked;    // its GPU is linked to all others
} reached_t;

#define FILE_HEAD ((size_t)4096) // a page, which begins with WM_NODE_FILE_HEAD

_Static_assert(WM_NODE_FILE_HEAD <= FILE_HEAD, "there is room");

static size_t
file_bytes(size_t nbytes)
{
    return FILE_HEAD + (nbytes + FILE_HEAD - 1) / FILE_HEAD * FILE_HEAD;
}

// Page-locks the mapped file of a rank for our GPU, if there is one.
static int
register_file(wm_symm_memory_t *symm, int rank, wm_error_t *err)
{
    void *file = symm->ranks[rank].file;
    symm->ranks[rank].memory = (char *)file + FILE_HEAD;
    if (symm->device < 0)
        return 0;
    int code = wm_host_register(symm->device, file,
                                file_bytes(symm->ranks[rank].nbytes), err);
    symm->ranks[rank].is_registered = code == 0;
    return code;
}

static int
symm_memory_make_file(wm_symm_memory_t *symm, int rank, told_t *told,
                      char **own, wm_error_t *err)
{
    int code = wm_node_make_file(file_bytes(symm->nbytes), &symm->file,
                                 &symm->ranks[rank].file, err);
    if (code < 0)
        return code;
    told->file = symm->file;
    symm->ranks[rank].nbytes = symm->nbytes;
    symm->ranks[rank].is_own = true;
    code = register_file(symm, rank, err);
    *own = symm->ranks[rank].memory;
    return code;
}

static int
symm_memory_allocate_on_host(wm_symm_memory_t *symm,
                             const wm_symm_group_t *group, told_t *told,
                             char **own, wm_error_t *err)
{
    wm_peer_t *self = group->peers[group->rank];
    int code = 0;
    if (group->has_files || symm->device < 0
        || symm->nbytes > WM_PINNED_SYMM_BYTES)
        return symm_memory_make_file(symm, group->rank, told, own, err);
    wm_engine_lock();
    told->pinned_symm = symm->pinned_symm = wm_pinned_symm_acquire();
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
symm_memory_allocate(wm_symm_memory_t *symm, const wm_symm_group_t *group,
                     told_t *told, char **own, wm_error_t *err)
{
    if (symm->on_host)
        return symm_memory_allocate_on_host(symm, group, told, own, err);
    int code = wm_block_alloc(symm->device, symm->nbytes, &symm->block, err);
    if (code == 0)
        *own = wm_block_pointer(symm->block);
    return code;
}

static bool
symm_memory_export(const wm_symm_memory_t *symm, const char *own, told_t *told)
{
    wm_pointer_t memory;
    if (symm->on_host)
        return true;
    wm_block_describe(symm->block, &memory);
    wm_engine_lock();
    bool exported = wm_rkey_export(own, &memory, &told->place, NULL) == 0;
    wm_engine_unlock();
    return exported;
}

static int
clear_all(const wm_symm_memory_t *symm, char *memory, wm_error_t *err)
{
    if (!symm->on_host)
        return wm_memory_copy_now(symm->device, memory, NULL, symm->nbytes,
                                  err);
    memset(memory, 0, symm->nbytes);
    return 0;
}

static int
symm_memory_prepare(wm_symm_memory_t *symm, const wm_symm_group_t *group,
                    wm_symm_memory_clear_t clear, told_t *told,
                    wm_error_t *err)
{
    const wm_device_t *device = NULL;
    char *own;
    int code = symm->device < 0 ? 0
                                : wm_device_get(symm->device, &device, err);
    if (code == 0)
        code = symm_memory_allocate(symm, group, told, &own, err);
    if (code == 0)
        code = clear != NULL ? clear(symm, own, err)
                             : clear_all(symm, own, err);
    if (code < 0)
        return code;
    told->has_gpu = device != NULL;
    if (device != NULL) {
        told->device = device->uuid;
        told->multiprocessors = device->multiprocessors;
        told->mps = device->mps;
        wm_engine_lock();
        told->others = (uint16_t)wm_sharers_besides(device, group->peers,
                                                    group->size);
        wm_engine_unlock();
    }
    told->nbytes = symm->nbytes;
    symm->ranks[group->rank].memory = own;
    symm->ranks[group->rank].nbytes = symm->nbytes;
    told->unreached = !symm_memory_export(symm, own, told);
    return 0;
}

// Returns the multiprocessors for the kernels of each rank.
static int
share_multiprocessors(const told_t *all, int size)
{
    int least = INT_MAX;
    for (int rank = 0; rank < size; ++rank) {
        int sharers = 0;
        for (int i = 0; i < size; ++i)
            sharers += all[i].has_gpu
                       && memcmp(&all[rank].device, &all[i].device,
                                 sizeof all[i].device)
                              == 0;
        int own = sharers == 1 || all[rank].mps
                      ? all[rank].multiprocessors
                            / (sharers + all[rank].others)
                      : 0;
        if (all[rank].has_gpu && own < least)
            least = own;
    }
    return least;
}

static int
are_linked(wm_symm_memory_t *symm, const told_t *all, wm_error_t *err)
{
    int code = 0;
    bool linked = !symm->on_host;
    for (int rank = 0; rank < symm->size && code == 0 && linked; ++rank)
        code = wm_device_is_linked(symm->device, &all[rank].device, &linked,
                                   err);
    symm->linked = linked;
    return code;
}

// Returns true if a rank told impossible numbers.
static bool
is_damaged(const wm_symm_memory_t *symm, const wm_symm_group_t *group,
           const told_t *told)
{
    int index = told->pinned_symm;
    bool holds = !symm->on_host ? wm_rkey_holds(&told->place, told->nbytes)
                 : told->file >= 0
                     ? told->nbytes <= SIZE_MAX / 2
                     : index >= 0 && index < WM_PINNED_SYMM_COUNT
                           && told->nbytes <= WM_PINNED_SYMM_BYTES;
    return !holds || told->nbytes < group->least;
}

// Maps the memory of a rank. Sets `damaged`, and fails, if the rank told
// impossible numbers; then no other kind of memory is tried.
static int
symm_memory_map_one(wm_symm_memory_t *symm, const wm_symm_group_t *group,
                    int rank, const told_t *told, bool *damaged,
                    wm_error_t *err)
{
    wm_peer_t *peer = group->peers[rank];
    char **memory = &symm->ranks[rank].memory;
    int index = told->pinned_symm, code;
    *damaged = is_damaged(symm, group, told);
    symm->ranks[rank].nbytes = told->nbytes;
    if (*damaged)
        return group->damaged(group, rank, err);
    if (symm->on_host && told->file >= 0) {
        code = wm_node_open_file(peer, told->file, file_bytes(told->nbytes),
                                 &symm->ranks[rank].file, err);
        if (code == 0)
            code = register_file(symm, rank, err);
    }
    else if (symm->on_host) {
        code = wm_node_register_pinned_symm(peer, index, symm->device, err);
        if (code == 0)
            *memory = wm_pinned_symm_pointer(peer, index);
    }
    else {
        code = wm_mapping_reach(peer, &told->place, symm->device,
                                &symm->ranks[rank].mapping, memory, err);
    }
    return code;
}

static int
symm_memory_map(wm_symm_memory_t *symm, const wm_symm_group_t *group,
                const told_t *all, bool *damaged, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < group->size && code == 0; ++rank)
        if (rank != group->rank)
            code = symm_memory_map_one(symm, group, rank, &all[rank], damaged,
                                       err);
    wm_engine_unlock();
    return code;
}

static void
free_files(wm_symm_memory_t *symm)
{
    for (int rank = 0; rank < symm->size; ++rank) {
        void *file = symm->ranks[rank].file;
        bool own = symm->file >= 0 && symm->ranks[rank].is_own;
        if (file == NULL)
            continue;
        if (symm->ranks[rank].is_registered)
            wm_host_unregister(symm->device, file);
        wm_node_close_file(own ? symm->file : -1, file,
                           file_bytes(symm->ranks[rank].nbytes));
    }
}

void
wm_symm_memory_free(wm_symm_memory_t *symm)
{
    if (symm == NULL)
        return;
    free_files(symm);
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

// Maps the memory of all ranks, unless one cannot export its own.
static int
symm_memory_reach(const wm_symm_group_t *group, wm_symm_memory_t *symm,
                  const told_t *all, reached_t *own, wm_error_t *err)
{
    bool damaged = false;
    for (int rank = 0; rank < group->size; ++rank)
        own->unreached |= all[rank].unreached;
    if (own->unreached)
        return 0;
    symm->multiprocessors = share_multiprocessors(all, group->size);
    int code = symm_memory_map(symm, group, all, &damaged, err);
    if (code == 0)
        code = are_linked(symm, all, err);
    own->linked = symm->linked;
    if (code == 0 || damaged || !wm_mapping_is_refused(code, err))
        return code;
    own->unreached = true;
    return 0;
}

static int
symm_memory_make(const wm_symm_group_t *group, wm_symm_memory_t *symm,
                 told_t *all, wm_symm_memory_clear_t clear, bool *unreached,
                 wm_error_t *err)
{
    told_t told = {.pinned_symm = -1, .file = -1};
    reached_t own = {0}, *reached = (reached_t *)(void *)all;
    int code = symm == NULL || all == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : symm_memory_prepare(symm, group, clear, &told, err);
    code = group->exchange(group, code, &told, sizeof told, all, err);
    if (code < 0)
        return code;
    code = symm_memory_reach(group, symm, all, &own, err);
    code = group->exchange(group, code, &own, sizeof own, reached, err);
    for (int rank = 0; rank < group->size && code == 0; ++rank) {
        *unreached |= reached[rank].unreached;
        symm->linked &= reached[rank].linked;
    }
    return code;
}

int
wm_symm_memory_make(const wm_symm_group_t *group, int device, bool on_host,
                    size_t nbytes, wm_symm_memory_clear_t clear,
                    wm_symm_memory_t **made, bool *unreached, wm_error_t *err)
{
    size_t size = (size_t)group->size;
    told_t *all = calloc(size, sizeof *all);
    wm_symm_memory_t *symm = calloc(1, sizeof *symm
                                           + size * sizeof symm->ranks[0]);
    if (symm != NULL) {
        symm->device = device;
        symm->size = group->size;
        symm->nbytes = nbytes;
        symm->on_host = on_host;
        symm->pinned_symm = symm->file = -1;
    }
    *unreached = false;
    int code = symm_memory_make(group, symm, all, clear, unreached, err);
    free(all);
    if (code < 0 || *unreached)
        wm_symm_memory_free(symm);
    else
        *made = symm;
    return code;
}
