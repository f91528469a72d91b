// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_attach.h"

#include <stdlib.h>

#include "comm/engine/engine.h"

static wm_attached_t *
own_table(void)
{
    return wm_node_self()->segment->attached;
}

// Changes an entry of ours, which others may be reading.
static void
entry_write(wm_attached_t *entry, int words, size_t nbytes,
            const wm_rkey_t *place)
{
    uint32_t version = atomic_load(&entry->version);
    atomic_store(&entry->version, version + 1);
    atomic_thread_fence(memory_order_seq_cst);
    entry->words = words;
    entry->nbytes = nbytes;
    if (place != NULL)
        entry->place = *place;
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store(&entry->version, version + 2);
}

// Copies an entry of a peer. Returns false if it changes at the moment.
static bool
entry_read(const wm_attached_t *entry, wm_attached_t *copy)
{
    uint32_t version = atomic_load(&entry->version);
    copy->words = entry->words;
    copy->nbytes = entry->nbytes;
    copy->place = entry->place;
    copy->version = version;
    atomic_thread_fence(memory_order_seq_cst);
    return version % 2 == 0 && atomic_load(&entry->version) == version;
}

static int
attach_export(wm_window_t *window, char *data, size_t nbytes,
              const wm_pointer_t *memory, wm_error_t *err)
{
    wm_attached_t *table = own_table();
    wm_rkey_t place = {0};
    int at = 0;
    while (at < WM_ATTACHED && table[at].words != 0)
        ++at;
    if (at == WM_ATTACHED)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "memory: a process attaches %d arrays at most: "
                            "detach some, or attach fewer, larger ones",
                            WM_ATTACHED);
    int code = wm_rkey_export(data, memory, &place, err);
    if (code == 0)
        entry_write(&table[at], 1 + window->words, nbytes, &place);
    return code;
}

int
wm_window_attach(wm_window_t *window, char *data, size_t nbytes,
                 const wm_pointer_t *memory, wm_error_t *err)
{
    const wm_target_memory_t what = {
        .data = data,
        .nbytes = nbytes,
        .memory = *memory,
        .at = (uintptr_t)data,
    };
    int code = wm_target_attach(window->target, &what, err);
    if (code < 0 || memory->kind != WM_MEMORY_DEVICE || !memory->exportable)
        return code; // our engine serves
    wm_engine_lock();
    code = attach_export(window, data, nbytes, memory, err);
    wm_engine_unlock();
    if (code < 0)
        (void)!wm_target_detach(window->target, (uintptr_t)data, NULL);
    return code;
}

int
wm_window_detach(wm_window_t *window, const char *data, wm_error_t *err)
{
    wm_attached_t *table = own_table();
    int at = 0;
    wm_engine_lock();
    while (at < WM_ATTACHED
           && (table[at].words != 1 + window->words
               || table[at].place.address != (uintptr_t)data))
        ++at;
    if (at < WM_ATTACHED)
        entry_write(&table[at], 0, 0, NULL);
    wm_engine_unlock();
    return wm_target_detach(window->target, (uintptr_t)data, err);
}

void
wm_window_detach_all(wm_window_t *window)
{
    wm_attached_t *table = own_table();
    for (int i = 0; i < WM_ATTACHED && window->words >= 0; ++i)
        if (table[i].words == 1 + window->words)
            entry_write(&table[i], 0, 0, NULL);
    for (int i = 0; i < window->attached_count; ++i)
        wm_mapping_release(window->attached[i].mapping);
    window->attached_count = 0;
}

// Maps an entry of another rank, unless it is mapped.
static int
attach_map(wm_window_t *window, int rank, int index,
           const wm_attached_t *entry, char **memory, wm_error_t *err)
{
    wm_window_attached_t *one = window->attached;
    wm_window_attached_t *end = one + window->attached_count;
    while (one < end && (one->rank != rank || one->index != index))
        ++one;
    if (one < end && one->version == entry->version) {
        *memory = one->memory;
        return 0;
    }
    if (one < end && atomic_load(&window->waiter.graphs) > 0)
        one->index = -1; // of memory that was detached, and graphs may use
    else if (one < end) {
        wm_mapping_release(one->mapping);
        *one = window->attached[--window->attached_count];
    }
    size_t count = (size_t)window->attached_count + 1;
    one = realloc(window->attached, count * sizeof *one);
    if (one == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    window->attached = one;
    one += window->attached_count;
    *one = (wm_window_attached_t){
        .rank = rank,
        .index = index,
        .version = entry->version,
    };
    int code = wm_mapping_reach(window->comm->peers[rank], &entry->place,
                                window->device, &one->mapping, memory, err);
    if (code < 0)
        return code;
    ++window->attached_count;
    one->memory = *memory;
    return 0;
}

int
wm_window_find_attached(wm_window_t *window, int rank, uint64_t address,
                        char **memory, uint64_t *nbytes, uint64_t *at,
                        wm_error_t *err)
{
    const wm_peer_t *peer = window->comm->peers[rank];
    const wm_window_part_t *part = &window->parts[rank];
    wm_attached_t entry;
    for (int i = 0; i < WM_ATTACHED && part->words != NULL; ++i) {
        if (!entry_read(&peer->segment->attached[i], &entry)
            || entry.words != 1 + part->index || address < entry.place.address
            || address - entry.place.address >= entry.nbytes)
            continue;
        int code = 0;
        if (rank == window->comm->rank)
            *memory = (char *)(uintptr_t)entry.place.address;
        else if (!wm_rkey_holds(&entry.place, entry.nbytes))
            return wm_comm_damaged(window->comm, rank, err);
        else {
            wm_engine_lock();
            code = attach_map(window, rank, i, &entry, memory, err);
            wm_engine_unlock();
        }
        *nbytes = entry.nbytes;
        *at = address - entry.place.address;
        return code < 0 ? code : 1;
    }
    return 0;
}
