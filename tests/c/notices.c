// SPDX-License-Identifier: BSD-3-Clause
// Notices of freed memory are heeded also when their ring wraps around while
// it is read: the owner's writing is acted out, in between, by this program.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "array/access.h"
#include "comm/engine/engine.h"
#include "comm/node/barrier.h"
#include "comm/node/mapping.h"

static wm_peer_t peer;
static void (*meanwhile)(void); // what the owner does while we close one
static int unmapped;
static bool in_background, refuses; // the next mapping
static wm_peer_t self;              // the owner of the exported memory
static int exported;                // memory is exported so many times

// The exported allocations: their ids by their addresses, 0 if freed.
#define EXPORTS 300
static uint64_t ids[EXPORTS];

// What mapping.c needs of the rest.
int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
{
    (void)err, (void)detail, (void)format;
    return code;
}

int
wm_device_describe(int device, const wm_device_t **info, wm_error_t *err)
{
    (void)device, (void)info, (void)err;
    return WM_ERR_CUDA;
}

void
wm_peer_refuse(wm_peer_t *refused, int link, const char *reason)
{
    (void)refused, (void)link, (void)reason;
}

wm_peer_t *
wm_node_peers(void)
{
    return &peer;
}

wm_peer_t *
wm_node_self(void)
{
    return &self;
}

int64_t
wm_engine_now(void)
{
    return 0;
}

void
wm_peer_stat_add(wm_peer_stats_t *stats, wm_peer_stat_t stat, int64_t amount)
{
    (void)stats, (void)stat, (void)amount;
}

bool
wm_engine_try_lock(void)
{
    return true;
}

void
wm_engine_unlock(void)
{
}

bool
wm_stream_words_any_waits(void)
{
    return false;
}

void
wm_storage_free_kept(void)
{
}

uint64_t
wm_pointer_buffer_id(uintptr_t base)
{
    return ids[base];
}

int
wm_memory_export(int device, uintptr_t base, CUipcMemHandle *handle,
                 wm_error_t *err)
{
    (void)device, (void)err;
    *handle = (CUipcMemHandle){.reserved = {(char)base, (char)(base >> 8)}};
    ++exported;
    return 0;
}

int
wm_memory_map(int device, const CUipcMemHandle *handle, void **pointer,
              wm_error_t *err)
{
    (void)device, (void)handle, (void)err;
    *pointer = &peer;
    return refuses ? WM_ERR_CUDA : 0;
}

bool
wm_engine_is_background(void)
{
    return in_background;
}

bool
wm_access_any_named(void)
{
    return false;
}

void
wm_memory_unmap(int device, void *pointer)
{
    (void)device, (void)pointer;
    ++unmapped;
    if (meanwhile != NULL)
        meanwhile();
    meanwhile = NULL;
}

// The owner's two steps of a notice, which are not one.
static void
write_id(uint64_t id)
{
    uint64_t count = atomic_load(&peer.segment->notice_count);
    atomic_store(&peer.segment->notices[count % WM_NOTICES], id);
}

static void
post(uint64_t id)
{
    write_id(id);
    atomic_fetch_add(&peer.segment->notice_count, 1);
}

static wm_mapping_t *
use_mapping(uint64_t id)
{
    wm_rkey_t place = {.buffer_id = id, .base = id, .size = 1};
    wm_mapping_t *mapping;
    int code = wm_mapping_open(&peer, &place, 0, &mapping, NULL);
    assert(code == 0);
    return mapping;
}

static void
open_mapping(uint64_t id)
{
    wm_mapping_release(use_mapping(id));
}

static void
a_notice_closes_its_mapping_only(void)
{
    open_mapping(1);
    open_mapping(2);
    post(1);
    assert(wm_mapping_heed_notices() == 1 && unmapped == 1);
    assert(wm_mapping_heed_notices() == 0);
}

static void
the_owner_writes_over_the_first_of_a_full_ring(void)
{
    open_mapping(1);
    post(1);
    for (int i = 1; i < WM_NOTICES; ++i)
        post(1000);
    write_id(1001);
    wm_mapping_heed_notices();
    assert(unmapped == 1);
}

static void
write_over_the_first(void)
{
    post(1000);
    write_id(1001);
}

static void
the_ring_wraps_around_while_it_is_read(void)
{
    open_mapping(1);
    open_mapping(2); // is looked at first
    post(1);
    post(2);
    for (int i = 2; i < WM_NOTICES - 1; ++i)
        post(1000);
    meanwhile = write_over_the_first;
    wm_mapping_heed_notices();
    assert(unmapped == 2);
}

static void
the_progress_thread_closes_nothing(void)
{
    open_mapping(1);
    post(1);
    in_background = true;
    open_mapping(2);
    assert(unmapped == 0);
    in_background = false;
    assert(wm_mapping_heed_notices() == 1 && unmapped == 1);
}

static void
what_it_could_not_map_is_made_room_for(void)
{
    wm_rkey_t place = {.buffer_id = 2, .base = 1, .size = 1};
    wm_mapping_t *mapping;
    open_mapping(1);
    in_background = refuses = true;
    assert(wm_mapping_open(&peer, &place, 0, &mapping, NULL) < 0);
    assert(wm_mapping_is_closing_wanted() && unmapped == 0);
    in_background = refuses = false;
    assert(wm_mapping_heed_notices() == 1 && unmapped == 1);
    assert(!wm_mapping_is_closing_wanted());
}

static void
what_rests_is_closed_and_known(void)
{
    wm_mapping_t *closed = use_mapping(1), *kept = use_mapping(2);
    wm_mapping_rest(closed);
    wm_mapping_rest(kept);
    post(1);
    assert(wm_mapping_heed_notices() == 1 && unmapped == 1);
    assert(!wm_mapping_is_there(closed) && wm_mapping_is_there(kept));
    wm_mapping_forget(closed);
    wm_mapping_resume(kept);
    post(2); // which waits until it is not used
    assert(wm_mapping_heed_notices() == 0 && unmapped == 1);
    wm_mapping_rest(kept);
    assert(!wm_mapping_is_there(kept) && unmapped == 2);
    wm_mapping_forget(kept);
}

// A mapping is found by an id that its owner tells, with addresses.
static void
an_id_with_other_addresses_is_refused(void)
{
    const wm_rkey_t known = {.buffer_id = 1, .base = 1024, .size = 512};
    wm_rkey_t places[] = {known, known};
    wm_mapping_t *mapping;
    assert(wm_mapping_open(&peer, &known, 0, &mapping, NULL) == 0);
    wm_mapping_release(mapping);
    places[0].base = 0;
    places[1].size = 1 << 20;
    for (int i = 0; i < 2; ++i)
        assert(wm_mapping_open(&peer, &places[i], 0, &mapping, NULL) < 0);
    assert(wm_mapping_open(&peer, &known, 0, &mapping, NULL) == 0);
    wm_mapping_release(mapping);
}

static void
export_memory(uintptr_t base)
{
    const wm_pointer_t memory = {.base = base, .buffer_id = ids[base]};
    wm_rkey_t place;
    int code = wm_rkey_export((void *)base, &memory, &place, NULL);
    assert(code == 0 && place.buffer_id == ids[base]);
    assert(place.handle.reserved[0] == (char)base);
    assert(place.handle.reserved[1] == (char)(base >> 8));
}

// Ids differ by the room of the table, so that many have one place.
static void
exports_are_known_until_their_memory_is_freed(void)
{
    self.segment = calloc(1, sizeof *self.segment);
    assert(self.segment != NULL);
    for (uintptr_t base = 1; base < EXPORTS; ++base) {
        ids[base] = 256 * base;
        export_memory(base);
    }
    assert(exported == EXPORTS - 1 && !wm_rkey_notify());
    for (uintptr_t base = 1; base < EXPORTS; base += 2)
        ids[base] = 0;
    assert(wm_rkey_notify() && !wm_rkey_notify());
    assert(self.segment->notice_count == EXPORTS / 2);
    for (uintptr_t base = 2; base < EXPORTS; base += 2)
        export_memory(base);
    assert(exported == EXPORTS - 1);
    ids[1] = 1;
    export_memory(1);
    assert(exported == EXPORTS);
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"one", a_notice_closes_its_mapping_only},
        {"full", the_owner_writes_over_the_first_of_a_full_ring},
        {"wrapped", the_ring_wraps_around_while_it_is_read},
        {"background", the_progress_thread_closes_nothing},
        {"resting", what_rests_is_closed_and_known},
        {"wanted", what_it_could_not_map_is_made_room_for},
        {"exports", exports_are_known_until_their_memory_is_freed},
        {"addresses", an_id_with_other_addresses_is_refused},
    };
    peer.segment = calloc(1, sizeof *peer.segment);
    assert(peer.segment != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && argc > 1; ++i)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    return 2;
}
