// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array/access.h"
#include "array/array.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/node/local_peers.h"
#include "comm/node/stream_words.h"
#include "cuda/freeing.h"

struct wm_mapping {
    wm_mapping_t *next; // next of the peer, most recently used first
    wm_peer_t *peer;
    uint64_t buffer_id;
    uint64_t base; // address at the owner
    int device;    // the device that accesses it
    int users;
    int holders; // users who know it, but do not use it
    bool stale;  // freed by its owner: close when unused
    size_t size;
    uint64_t used; // time of last use, for eviction
    void *pointer; // NULL: closed
};

static uint64_t clock_now;
static int stale_count; // number of stale mappings
static _Atomic bool closing_wanted;

// Counts a use of what is already mapped.
static void
count_hit(wm_peer_t *peer)
{
    wm_stat_add(WM_STAT_mappings_hit, 1);
    wm_peer_stat_add(&peer->stats, WM_PEER_STAT_mappings_hit, 1);
}

// Counts what is mapped now: `change` is 1 or -1.
static void
count_open(const wm_mapping_t *mapping, int change)
{
    wm_peer_stats_t *stats = &mapping->peer->stats;
    int64_t bytes = change * (int64_t)mapping->size;
    wm_stat_add(WM_STAT_mappings_open, change);
    wm_stat_add(WM_STAT_mapped_bytes, bytes);
    wm_peer_stat_add(stats, WM_PEER_STAT_mappings_open, change);
    wm_peer_stat_add(stats, WM_PEER_STAT_mapped_bytes, bytes);
}

static void
count_opened(const wm_mapping_t *mapping, int64_t microseconds)
{
    wm_peer_stats_t *stats = &mapping->peer->stats;
    wm_stat_add(WM_STAT_mappings_opened, 1);
    wm_peer_stat_add(stats, WM_PEER_STAT_mappings_opened, 1);
    wm_peer_stat_add(stats, WM_PEER_STAT_mapping_microseconds, microseconds);
    count_open(mapping, 1);
}

static void
close_now(wm_mapping_t **link)
{
    wm_mapping_t *mapping = *link;
    *link = mapping->next;
    stale_count -= mapping->stale;
    wm_memory_unmap(mapping->device, mapping->pointer);
    wm_stat_add(WM_STAT_mappings_closed, 1);
    count_open(mapping, -1);
    mapping->pointer = NULL;
    if (mapping->holders == 0)
        free(mapping);
}

static void
mark_stale(wm_mapping_t *mapping)
{
    stale_count += !mapping->stale;
    mapping->stale = true;
}

#define MODULES_ABOVE 4

static bool (*_Atomic above_waits[MODULES_ABOVE])(void);

void
wm_mapping_add_waits(bool (*waits)(void))
{
    int at = 0;
    while (at < MODULES_ABOVE - 1 && atomic_load(&above_waits[at]) != NULL
           && atomic_load(&above_waits[at]) != waits)
        ++at;
    atomic_store(&above_waits[at], waits);
}

bool
wm_mapping_would_wait(void)
{
    bool any = wm_access_any_named() || wm_stream_words_any_waits();
    for (int i = 0; i < MODULES_ABOVE && !any; ++i) {
        bool (*waits)(void) = atomic_load(&above_waits[i]);
        any = waits != NULL && waits();
    }
    return any;
}

// Closes a mapping. Returns false if it is left for later: closing would wait
// for other ranks, or this is the progress thread, which does not know what
// the program is about to do.
static bool
close_mapping(wm_mapping_t **link)
{
    wm_freeing_begin();
    bool waits = wm_mapping_would_wait() || wm_engine_is_background();
    if (!waits)
        close_now(link);
    wm_freeing_end();
    return !waits;
}

// Returns the unused mapping of all peers that was used longest ago; NULL:
// none.
static wm_mapping_t **
oldest_unused(void)
{
    wm_mapping_t **oldest = NULL;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer))
        for (wm_mapping_t **link = &peer->mappings; *link != NULL;
             link = &(*link)->next)
            if ((*link)->users == 0
                && (oldest == NULL || (*link)->used < (*oldest)->used))
                oldest = link;
    return oldest;
}

// Closes mappings to make room for a new one. Mappings of all peers may take
// as much address space as the device has memory. A larger one still works,
// alone; so does one more if none can be closed.
static void
mapping_make_room(int device, size_t size)
{
    const wm_device_t *info;
    if (wm_device_describe(device, &info, NULL) < 0)
        return;
    while ((size_t)wm_stat_get(WM_STAT_mapped_bytes) + size
           > info->total_memory) {
        wm_mapping_t **link = oldest_unused();
        if (link == NULL || !close_mapping(link))
            return;
    }
}

// Closes mappings of freed memory whose addresses a new allocation has: the
// driver may refuse to map the new one meanwhile.
static void
close_overlapped(wm_peer_t *peer, const wm_rkey_t *place)
{
    for (wm_mapping_t **link = &peer->mappings; *link != NULL;) {
        wm_mapping_t *mapping = *link;
        if (mapping->buffer_id != place->buffer_id
            && mapping->base < place->base + place->size
            && place->base < mapping->base + mapping->size)
            mark_stale(mapping);
        if (!mapping->stale || mapping->users > 0 || !close_mapping(link))
            link = &mapping->next;
    }
}

// Closes all unused mappings; returns how many.
static int
close_unused(void)
{
    int closed = 0;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer))
        for (wm_mapping_t **link = &peer->mappings; *link != NULL;)
            if ((*link)->users > 0 || !close_mapping(link))
                link = &(*link)->next;
            else
                ++closed;
    return closed;
}

int
wm_mapping_open(wm_peer_t *peer, const wm_rkey_t *place, int device,
                wm_mapping_t **mapping, wm_error_t *err)
{
    if (atomic_load(&peer->segment->notice_count) != peer->notices_seen)
        wm_mapping_heed_notices();
    for (wm_mapping_t **link = &peer->mappings; *link != NULL;
         link = &(*link)->next) {
        wm_mapping_t *found = *link;
        if (found->buffer_id != place->buffer_id || found->device != device)
            continue;
        if (found->base != place->base || found->size != place->size)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "the peer gives another address or size for "
                                "the same allocation than before");
        *link = found->next;
        found->next = peer->mappings;
        peer->mappings = found;
        found->used = ++clock_now;
        ++found->users;
        count_hit(peer);
        *mapping = found;
        return 0;
    }
    bool closes = !wm_engine_is_background();
    int64_t began = wm_engine_now();
    if (!closes && wm_mapping_is_closing_wanted())
        return wm_error_set(err, WM_ERR_CUDA, CUDA_ERROR_ALREADY_MAPPED,
                            "freed memory is still mapped here");
    wm_mapping_t *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    close_overlapped(peer, place);
    if (closes)
        mapping_make_room(device, place->size);
    int code = wm_memory_map(device, &place->handle, &opened->pointer, err);
    if (code < 0 && !closes)
        atomic_store(&closing_wanted, true);
    if (code == WM_ERR_MEMORY && closes && close_unused() > 0)
        code = wm_memory_map(device, &place->handle, &opened->pointer, err);
    if (code < 0) {
        free(opened);
        return code;
    }
    opened->buffer_id = place->buffer_id;
    opened->base = place->base;
    opened->device = device;
    opened->size = place->size;
    opened->users = 1;
    opened->used = ++clock_now;
    opened->peer = peer;
    opened->next = peer->mappings;
    peer->mappings = opened;
    count_opened(opened, wm_engine_now() - began);
    *mapping = opened;
    return 0;
}

bool
wm_mapping_is_refused(int code, const wm_error_t *err)
{
    return code != WM_ERR_MEMORY
           && (err == NULL || err->detail != CUDA_ERROR_ALREADY_MAPPED);
}

int
wm_mapping_reach(wm_peer_t *peer, const wm_rkey_t *place, int device,
                 wm_mapping_t **mapping, char **at, wm_error_t *err)
{
    int code = wm_mapping_open(peer, place, device, mapping, err);
    if (code == 0)
        *at = wm_mapping_at(*mapping, place);
    else if (wm_mapping_is_refused(code, err)) {
        char reason[320];
        snprintf(reason, sizeof reason,
                 "the peer's GPU memory cannot be mapped: %.275s",
                 err != NULL ? err->text : "");
        wm_peer_refuse(peer, WM_LINK_ipc, reason);
    }
    return code;
}

void
wm_mapping_release(wm_mapping_t *mapping)
{
    if (--mapping->users > 0 || !mapping->stale)
        return;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer))
        for (wm_mapping_t **link = &peer->mappings; *link != NULL;
             link = &(*link)->next)
            if (*link == mapping) {
                close_mapping(link);
                return;
            }
}

void
wm_mapping_rest(wm_mapping_t *mapping)
{
    ++mapping->holders;
    wm_mapping_release(mapping);
}

bool
wm_mapping_is_there(const wm_mapping_t *mapping)
{
    return mapping->pointer != NULL;
}

void
wm_mapping_resume(wm_mapping_t *mapping)
{
    --mapping->holders;
    ++mapping->users;
    mapping->used = ++clock_now;
    count_hit(mapping->peer);
}

void
wm_mapping_forget(wm_mapping_t *mapping)
{
    if (--mapping->holders == 0 && mapping->pointer == NULL)
        free(mapping);
}

char *
wm_mapping_at(const wm_mapping_t *mapping, const wm_rkey_t *place)
{
    return (char *)mapping->pointer + (place->address - place->base);
}

// Returns true if the owner gave notice that the memory is freed. A reader
// that is too late for the ring of notices takes all memory for freed; also if
// the ring is just full, as the owner may be overwriting the first notice.
static bool
noticed(const wm_segment_t *segment, uint64_t from, uint64_t to,
        uint64_t buffer_id)
{
    if (to - from >= WM_NOTICES)
        return true;
    for (uint64_t i = from; i < to; ++i)
        if (atomic_load(&segment->notices[i % WM_NOTICES]) == buffer_id)
            return true;
    return false;
}

static int
close_noticed(wm_peer_t *peer, uint64_t from, uint64_t to)
{
    int closed = 0;
    for (wm_mapping_t **link = &peer->mappings; *link != NULL;) {
        wm_mapping_t *mapping = *link;
        if (!mapping->stale
            && !noticed(peer->segment, from, to, mapping->buffer_id)) {
            link = &mapping->next;
        }
        else if (mapping->users > 0 || !close_mapping(link)) {
            mark_stale(mapping);
            link = &mapping->next;
        }
        else
            ++closed;
    }
    return closed;
}

static int
heed_peer(wm_peer_t *peer)
{
    uint64_t from = peer->notices_seen;
    uint64_t to = atomic_load(&peer->segment->notice_count);
    int closed = close_noticed(peer, from, to);
    // The ring went round while we read it: take all memory for freed.
    uint64_t now = atomic_load(&peer->segment->notice_count);
    if (now - from >= WM_NOTICES)
        closed += close_noticed(peer, from, to = now);
    peer->notices_seen = to;
    return closed;
}

bool
wm_mapping_is_closing_wanted(void)
{
    return atomic_load_explicit(&closing_wanted, memory_order_relaxed);
}

void
wm_mapping_close_stale(void)
{
    wm_storage_free_kept();
    if (!wm_mapping_is_closing_wanted() || !wm_engine_try_lock())
        return;
    wm_mapping_heed_notices();
    wm_engine_unlock();
}

int
wm_mapping_heed_notices(void)
{
    int closed = 0;
    atomic_store(&closing_wanted, false);
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer))
        if (peer->segment != NULL && !peer->self
            && (stale_count > 0
                || atomic_load(&peer->segment->notice_count)
                       != peer->notices_seen))
            closed += heed_peer(peer);
    return closed;
}

bool
wm_mapping_reclaim(int device)
{
    (void)device;
    if (!wm_engine_try_lock())
        return false;
    bool any = wm_rkey_notify();
    any |= close_unused() > 0;
    wm_engine_unlock();
    return any;
}
