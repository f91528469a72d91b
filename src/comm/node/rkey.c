// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/rkey.h"

#include <stdlib.h>
#include <string.h>

#include "comm/node/node.h"

// One allocation of ours whose handle was given out.
typedef struct {
    uint64_t buffer_id;
    uintptr_t base;
    CUipcMemHandle handle;
} export_t;

static export_t *exports; // in no order
static size_t export_room, export_count, export_scan_at = 64;
// Finds them by id: 1 + their index, or 0; by linear probing.
static uint32_t *export_places;

#define PLACES_EACH 4 // for room of one export

// Returns the place of an export, or the free one where it belongs.
static uint32_t *
place_of(uint64_t buffer_id)
{
    size_t places = PLACES_EACH * export_room, at = buffer_id % places;
    while (export_places[at] != 0
           && exports[export_places[at] - 1].buffer_id != buffer_id)
        at = (at + 1) % places;
    return &export_places[at];
}

static void
place_exports(void)
{
    memset(export_places, 0,
           PLACES_EACH * export_room * sizeof *export_places);
    for (size_t i = 0; i < export_count; ++i)
        *place_of(exports[i].buffer_id) = (uint32_t)i + 1;
}

static bool
grow_exports(void)
{
    size_t room = export_room > 0 ? 2 * export_room : 64;
    export_t *table = realloc(exports, room * sizeof *table);
    exports = table != NULL ? table : exports;
    uint32_t *places = malloc(PLACES_EACH * room * sizeof *places);
    if (table == NULL || places == NULL) {
        free(places);
        return false;
    }
    free(export_places);
    export_places = places;
    export_room = room;
    place_exports();
    return true;
}

static int
find_handle(const wm_pointer_t *memory, CUipcMemHandle *handle,
            wm_error_t *err)
{
    if (export_count == export_room && !grow_exports())
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    uint32_t known = *place_of(memory->buffer_id);
    if (known != 0) {
        *handle = exports[known - 1].handle;
        return 0;
    }
    int code = wm_memory_export(memory->device, memory->base, handle, err);
    if (code < 0)
        return code;
    exports[export_count] = (export_t){memory->buffer_id, memory->base,
                                       *handle};
    *place_of(memory->buffer_id) = (uint32_t)export_count + 1;
    // Also bounds the table in a program without barriers.
    if (++export_count >= export_scan_at) {
        wm_rkey_notify();
        export_scan_at = 2 * export_count > 64 ? 2 * export_count : 64;
    }
    return 0;
}

void
wm_rkey_set(const void *data, const wm_pointer_t *memory, wm_rkey_t *place)
{
    place->address = (uintptr_t)data;
    place->base = memory->base;
    place->size = memory->size;
    place->buffer_id = memory->buffer_id;
}

int
wm_rkey_export(const void *data, const wm_pointer_t *memory, wm_rkey_t *place,
               wm_error_t *err)
{
    int code = find_handle(memory, &place->handle, err);
    if (code == 0)
        wm_rkey_set(data, memory, place);
    return code;
}

bool
wm_rkey_holds(const wm_rkey_t *place, uint64_t nbytes)
{
    uint64_t offset = place->address - place->base;
    return place->address >= place->base && offset <= place->size
           && nbytes <= place->size - offset;
}

static bool
export_is_freed(const export_t *entry)
{
    return wm_pointer_buffer_id(entry->base) != entry->buffer_id;
}

static void
give_notice(uint64_t buffer_id)
{
    wm_segment_t *segment = wm_node_self()->segment;
    uint64_t count = atomic_load(&segment->notice_count);
    atomic_store(&segment->notices[count % WM_NOTICES], buffer_id);
    atomic_store(&segment->notice_count, count + 1);
}

bool
wm_rkey_notify(void)
{
    size_t before = export_count;
    for (size_t i = before; i-- > 0;) {
        if (!export_is_freed(&exports[i]))
            continue;
        give_notice(exports[i].buffer_id);
        exports[i] = exports[--export_count];
    }
    if (export_count < before)
        place_exports();
    return export_count < before;
}
