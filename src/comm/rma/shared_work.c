// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/shared_work.h"

#include <stdlib.h>

#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "cuda/stream.h"

// Finds the entry of a stream, or one whose work has ended; NULL: there is
// none.
static wm_shared_entry_t *
find_entry(const wm_shared_work_t *work, int device, CUstream stream,
           uint64_t id)
{
    // A handle is another stream's later, or on each thread another one.
    bool known = id != 0 || stream == CU_STREAM_LEGACY;
    for (int i = 0; i < work->count && known; ++i)
        if (work->entries[i].stream == stream && work->entries[i].id == id)
            return &work->entries[i];
    for (int i = 0; i < work->count; ++i)
        if (wm_event_has_ended(device, work->entries[i].event))
            return &work->entries[i];
    return NULL;
}

static int
add_entry(wm_shared_work_t *work, int device, wm_shared_entry_t **entry,
          wm_error_t *err)
{
    if (work->count == work->room) {
        int room = work->room > 0 ? 2 * work->room : 4;
        wm_shared_entry_t *more = realloc(work->entries,
                                          (size_t)room * sizeof *more);
        if (more == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        work->entries = more;
        work->room = room;
    }
    wm_shared_entry_t *made = &work->entries[work->count];
    *made = (wm_shared_entry_t){0};
    int code = wm_event_acquire(device, &made->event, err);
    if (code < 0)
        return code;
    ++work->count;
    *entry = made;
    return 0;
}

int
wm_shared_work_note(wm_shared_work_t *work, int device,
                    const wm_shared_call_t *call, CUstream stream,
                    wm_error_t *err)
{
    uint64_t id = wm_stream_id(device, stream);
    wm_shared_entry_t *entry = find_entry(work, device, stream, id);
    int code = entry != NULL ? 0 : add_entry(work, device, &entry, err);
    if (code == 0)
        code = wm_event_record(device, entry->event, stream, err);
    if (code < 0)
        return code;
    entry->stream = stream;
    entry->id = id;
    entry->last = *call;
    ++entry->calls;
    return 0;
}

bool
wm_shared_work_has_ended(const wm_shared_work_t *work, int device)
{
    int i = 0;
    while (i < work->count
           && wm_event_has_ended(device, work->entries[i].event))
        ++i;
    return i == work->count;
}

static void
report_wait(const wm_shared_call_t *call, int64_t waited)
{
    wm_words_t words = {0};
    wm_words_add(&words,
                 "%s: a stream has waited for %.0f s in calls of a "
                 "shared array, of which the last is %s(",
                 wm_hang_who(), (double)waited * 1e-6, call->name);
    if (call->slot >= 0)
        wm_words_add(&words, "slot=%d, value=%llu", call->slot,
                     (unsigned long long)call->value);
    wm_words_add(&words, "): another rank has not signalled, or not come to "
                         "the barrier, or the stream waits for something "
                         "else");
    wm_words_print(&words);
}

void
wm_shared_work_look(wm_shared_work_t *work, int device, int64_t now,
                    int64_t limit)
{
    for (int i = 0; i < work->count && limit > 0; ++i) {
        wm_shared_entry_t *entry = &work->entries[i];
        if (entry->seen != entry->calls) {
            entry->seen = entry->calls;
            entry->since = now;
        }
        else if (entry->since >= 0 && now - entry->since > limit) {
            if (!wm_event_has_ended(device, entry->event))
                report_wait(&entry->last, now - entry->since);
            entry->since = -1;
        }
    }
}

void
wm_shared_work_free(wm_shared_work_t *work, int device)
{
    for (int i = 0; i < work->count; ++i)
        wm_event_release(device, work->entries[i].event);
    free(work->entries);
    *work = (wm_shared_work_t){0};
}
