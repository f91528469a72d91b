// SPDX-License-Identifier: BSD-3-Clause
#include "array/access.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/lock.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t notes; // number of the last mark
static _Atomic int named;

void
wm_access_begin(wm_access_t *access, const wm_producer_t *producer,
                bool to_write, int device)
{
    memset(access, 0, sizeof *access);
    access->producer = *producer;
    access->to_write = to_write;
    access->device = device;
    access->user_device = -1;
}

void
wm_access_name_stream(wm_access_t *access, int device, CUstream stream)
{
    access->user_device = device;
    access->user_stream = stream;
    access->counted = true;
    atomic_fetch_add(&named, 1);
}

bool
wm_access_any_named(void)
{
    return atomic_load(&named) > 0;
}

static void
take_note(wm_note_t *note, int device, CUstream stream)
{
    CUevent event;
    uint64_t id = wm_stream_id(device, stream);
    if (wm_event_acquire(device, &event, NULL) < 0)
        return;
    // One lock for all records: the numbers tell the order of marks on a
    // stream.
    wm_lock(&lock);
    int code = wm_event_record(device, event, stream, NULL);
    note->number = ++notes;
    pthread_mutex_unlock(&lock);
    if (code < 0) {
        wm_event_release(device, event);
        return;
    }
    note->event = event;
    note->device = device;
    note->stream = id;
}

void
wm_access_record(wm_access_t *access)
{
    const wm_producer_t *producer = &access->producer;
    if (producer->kind == WM_PRODUCER_STREAM)
        take_note(&access->after[0], producer->device, producer->stream);
    if (access->user_device >= 0)
        take_note(&access->after[1], access->user_device, access->user_stream);
}

bool
wm_access_is_noted(const wm_access_t *access)
{
    return access->after[0].event != NULL;
}

bool
wm_access_covers(const wm_access_t *access, const wm_access_t *other)
{
    const wm_note_t *note = &access->after[0], *before = &other->after[0];
    return note->device == before->device && note->stream == before->stream
           && note->stream != 0 // else unknown whether both are one stream
           && note->number >= before->number;
}

void
wm_access_note_ended(wm_access_t *access)
{
    wm_event_release(access->after[0].device, access->after[0].event);
    access->after[0].event = NULL;
    access->producer.kind = WM_PRODUCER_NONE;
}

bool
wm_access_ask_note(wm_access_t *access)
{
    const wm_note_t *note = &access->after[0];
    bool ended = false;
    if (wm_event_done(note->device, note->event, &ended, NULL) < 0 || !ended)
        return false;
    wm_access_note_ended(access);
    return true;
}

bool
wm_access_is_free(const wm_access_t *access)
{
    return access->after[0].event == NULL
           && access->producer.kind == WM_PRODUCER_NONE;
}

void
wm_access_forget_borrowed(wm_access_t *access)
{
    access->opened = access->pooled;
}

void
wm_access_after_nothing(wm_access_t *access)
{
    access->after_nothing = true;
    wm_access_forget_borrowed(access);
}

bool
wm_access_may_borrow(const wm_access_t *access)
{
    const wm_producer_t *producer = &access->producer;
    if (access->after_nothing || access->after[0].event != NULL
        || producer->stream == CU_STREAM_PER_THREAD
        || (access->to_write && wm_stream_is_default(producer->stream)))
        return false;
    return producer->kind == WM_PRODUCER_STREAM && access->user_device < 0
           && producer->device == access->device;
}

void
wm_access_borrow(wm_access_t *access)
{
    access->stream = access->producer.stream;
    access->opened = true;
}

void
wm_access_use(wm_access_t *access, CUstream stream)
{
    access->stream = stream;
    access->opened = true;
}

int
wm_access_before(const wm_access_t *access, int device, CUstream stream,
                 wm_error_t *err)
{
    if (access->after[0].event != NULL)
        return wm_stream_wait_event(device, stream, access->after[0].event,
                                    err);
    return wm_producer_before(&access->producer, access->to_write, device,
                              stream, err);
}

int
wm_access_open(wm_access_t *access, wm_error_t *err)
{
    int code = 0, device = access->device;
    if (access->opened)
        return 0;
    if (!access->pooled)
        code = wm_stream_acquire(device, &access->stream, err);
    if (code < 0)
        return code;
    access->pooled = true;
    for (int i = 0; i < 2 && code == 0; ++i)
        if (access->after[i].event != NULL)
            code = wm_stream_wait_event(device, access->stream,
                                        access->after[i].event, err);
    if (code == 0 && access->user_device >= 0 && access->after[1].event == NULL
        && !access->after_nothing)
        code = wm_stream_follow(device, access->stream, access->user_device,
                                access->user_stream, err);
    if (code == 0 && access->after[0].event == NULL && !access->after_nothing)
        code = wm_producer_before(&access->producer, access->to_write, device,
                                  access->stream, err);
    access->opened = code == 0;
    return code;
}

int
wm_access_open_named(wm_access_t *access, wm_error_t *err)
{
    if (access->opened)
        return 0;
    access->stream = access->user_stream;
    int code = wm_producer_before(&access->producer, access->to_write,
                                  access->device, access->stream, err);
    access->opened = code == 0;
    return code;
}

bool
wm_access_is_named(const wm_access_t *access)
{
    return access->opened && !access->pooled && access->user_device >= 0;
}

int
wm_access_look(wm_access_t *access, int tries, wm_error_t *err)
{
    bool idle = false;
    int code = wm_stream_spin(access->device, access->stream, tries, &idle,
                              err);
    access->idle = idle;
    return code < 0 ? code : idle;
}

int
wm_access_synchronize(const wm_access_t *access, wm_error_t *err)
{
    return access->opened || access->pooled
               ? wm_stream_synchronize(access->device, access->stream, err)
               : 0;
}

void
wm_access_wait_for_notes(const wm_access_t *access)
{
    for (int i = 0; i < 2; ++i)
        if (access->after[i].event != NULL)
            (void)!wm_event_synchronize(access->after[i].device,
                                        access->after[i].event, NULL);
}

static void
access_leave_stream(wm_access_t *access)
{
    if (access->pooled && access->idle)
        wm_stream_release_idle(access->device, access->stream);
    else if (access->pooled)
        wm_stream_release(access->device, access->stream);
    access->pooled = access->opened = false;
}

void
wm_access_move(wm_access_t *access, int device)
{
    if (access->device == device)
        return;
    access_leave_stream(access);
    access->device = device;
}

void
wm_access_close(wm_access_t *access)
{
    access_leave_stream(access);
    if (access->counted)
        atomic_fetch_sub(&named, 1);
    access->counted = false;
    for (int i = 0; i < 2; ++i)
        if (access->after[i].event != NULL)
            wm_event_release(access->after[i].device, access->after[i].event);
    memset(access->after, 0, sizeof access->after);
}
