// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/rkey.h"

#include <stdlib.h>

#include "comm/node/node.h"

// One allocation of ours whose handle was given out.
typedef struct {
    uint64_t buffer_id;
    uintptr_t base;
    CUipcMemHandle handle;
} export_t;

static export_t *exports; // a hash table with linear probing
static size_t export_room, export_count, export_scan_at = 64;

static void
put_export(export_t *table, size_t room, const export_t *entry)
{
    size_t at = entry->buffer_id % room;
    while (table[at].buffer_id != 0)
        at = (at + 1) % room;
    table[at] = *entry;
}

static bool
grow_exports(void)
{
    size_t room = export_room > 0 ? 2 * export_room : 256;
    export_t *table = calloc(room, sizeof *table);
    if (table == NULL)
        return false;
    for (size_t i = 0; i < export_room; ++i)
        if (exports[i].buffer_id != 0)
            put_export(table, room, &exports[i]);
    free(exports);
    exports = table;
    export_room = room;
    return true;
}

static int
find_handle(const wm_pointer_t *memory, CUipcMemHandle *handle,
            wm_error_t *err)
{
    if (2 * (export_count + 1) > export_room && !grow_exports())
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    size_t at = memory->buffer_id % export_room;
    for (; exports[at].buffer_id != 0; at = (at + 1) % export_room)
        if (exports[at].buffer_id == memory->buffer_id) {
            *handle = exports[at].handle;
            return 0;
        }
    int code = wm_memory_export(memory->device, memory->base, handle, err);
    if (code < 0)
        return code;
    exports[at] = (export_t){memory->buffer_id, memory->base, *handle};
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

bool
wm_rkey_notify(void)
{
    export_t *old = exports;
    size_t room = export_room;
    bool any = false;
    if (export_count == 0)
        return false;
    export_t *kept = calloc(room, sizeof *kept);
    if (kept == NULL)
        return false;
    wm_segment_t *segment = wm_node_self()->segment;
    export_count = 0;
    for (size_t i = 0; i < room; ++i) {
        if (old[i].buffer_id == 0)
            continue;
        if (wm_pointer_buffer_id(old[i].base) == old[i].buffer_id) {
            put_export(kept, room, &old[i]);
            ++export_count;
            continue;
        }
        uint64_t count = atomic_load(&segment->notice_count);
        atomic_store(&segment->notices[count % WM_NOTICES], old[i].buffer_id);
        atomic_store(&segment->notice_count, count + 1);
        any = true;
    }
    exports = kept;
    free(old);
    return any;
}
