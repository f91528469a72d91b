// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/batch.h"

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/protocol/fragments.h"

#define ANNOUNCEMENTS 32
// We ask the driver about announcements when there are so many later ones. An
// event that was just recorded has not ended for some microseconds, even if
// its stream is idle.
#define LATER 8
#define SOON_US 10 // work that has not ended by then takes longer
#define HOLD_US 8  // a header takes 1 or 2 us

typedef struct {
    wm_end_t *end;
    void (*launched)(wm_end_t *end, const wm_error_t *failure);
} member_t;

typedef struct {
    int count;
    wm_eager_ll_t messages[WM_EAGER_LL_MESSAGES];
    member_t members[WM_EAGER_LL_MESSAGES];
} waiting_t;

static uint32_t queued; // messages that wait here; engine lock

// Protected by the engine lock. Both kinds go out as one kernel.
static wm_batch_t common; // of the waiting messages
static waiting_t posts, fetches;
static int64_t held_until; // microseconds; 0: not held

static struct {
    int device, count;
    wm_pull_t pulls[WM_PULLS];
    wm_end_t *ends[WM_PULLS];
    void (*alone)(wm_end_t *end);
} pulls; // engine lock

static struct {
    int count;
    wm_end_t *ends[ANNOUNCEMENTS];
    int64_t since[ANNOUNCEMENTS];
    void (*announced)(wm_end_t *end);
} announcements;

// The batch is empty before launched() is called, as a failed operation may
// come back here.
static void
flush_eager_ll(void)
{
    wm_error_t err;
    member_t members[WM_EAGER_LL_MESSAGES];
    int count = posts.count + fetches.count;
    if (count == 0)
        return;
    for (int i = 0; i < count; ++i)
        members[i] = i < posts.count ? posts.members[i]
                                     : fetches.members[i - posts.count];
    int code = wm_eager_ll_launch(common.device, posts.messages, posts.count,
                                  fetches.messages, fetches.count,
                                  common.patience_us, common.stream, &err);
    posts.count = fetches.count = 0;
    held_until = 0;
    queued -= (uint32_t)count;
    for (int i = 0; i < count; ++i)
        members[i].launched(members[i].end, code < 0 ? &err : NULL);
}

void
wm_batch_flush_posts(int device, CUstream stream)
{
    if (posts.count > 0 && common.device == device && common.stream == stream)
        flush_eager_ll();
}

static bool
fits(const wm_batch_t *batch)
{
    return posts.count + fetches.count < WM_EAGER_LL_MESSAGES
           && common.device == batch->device && common.stream == batch->stream
           && (fetches.count == 0 || batch->posts
               || common.patience_us == batch->patience_us);
}

void
wm_batch_add(const wm_batch_t *batch, const wm_eager_ll_t *message,
             wm_end_t *end,
             void (*launched)(wm_end_t *end, const wm_error_t *failure))
{
    if (!fits(batch))
        flush_eager_ll();
    waiting_t *waiting = batch->posts ? &posts : &fetches;
    common.device = batch->device;
    common.stream = batch->stream;
    if (!batch->posts) {
        common.patience_us = batch->patience_us;
        held_until = 0; // held messages go with it
    }
    waiting->messages[waiting->count] = *message;
    waiting->members[waiting->count++] = (member_t){end, launched};
    ++queued;
}

void
wm_batch_hold(void)
{
    if (posts.count > 0 && fetches.count == 0)
        held_until = wm_engine_now() + HOLD_US;
}

// Asks if the users of the buffers have ended, and notes it. Of users on one
// stream, only the last is asked: if it has ended, so have the others.
static void
batch_ask(wm_end_t *const *ends, int count)
{
    for (int i = count - 1; i >= 0; --i) {
        wm_access_t *access = &ends[i]->access;
        bool newest = true;
        if (!wm_access_is_noted(access))
            continue;
        for (int k = count - 1; k >= 0 && newest; --k)
            newest = k == i || !wm_access_is_noted(&ends[k]->access)
                     || !wm_access_covers(&ends[k]->access, access);
        if (!newest || !wm_access_ask_note(access))
            continue;
        for (int k = 0; k < count; ++k)
            if (wm_access_is_noted(&ends[k]->access)
                && wm_access_covers(access, &ends[k]->access))
                wm_access_note_ended(&ends[k]->access);
    }
}

static int
launch_pulls(int device, wm_pull_params_t *params, wm_end_t *const *ends,
             wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    for (uint32_t i = 0; i < params->count; ++i)
        ends[i]->access.stream = stream;
    code = wm_pull_launch(device, params, stream, err);
    wm_stream_release(device, stream);
    return code;
}

static void
flush_some_pulls(void)
{
    wm_pull_params_t params = {.count = 0}; // a few KiB
    wm_end_t *ends[WM_PULLS];
    wm_error_t err;
    int count = pulls.count, code = 0;
    pulls.count = 0;
    queued -= (uint32_t)count;
    if (count > 1)
        batch_ask(pulls.ends, count);
    for (int i = 0; i < count; ++i) {
        if (count == 1 || !wm_access_is_free(&pulls.ends[i]->access)) {
            pulls.alone(pulls.ends[i]);
            continue;
        }
        ends[params.count] = pulls.ends[i];
        params.pulls[params.count++] = pulls.pulls[i];
    }
    if (params.count > 0)
        code = launch_pulls(pulls.device, &params, ends, &err);
    for (uint32_t i = 0; i < params.count && code < 0; ++i)
        wm_fragments_launched(ends[i], &err);
}

static void
flush_pulls(void)
{
    if (pulls.count > 0)
        flush_some_pulls();
}

void
wm_batch_add_pull(const wm_pull_t *pull, wm_end_t *end,
                  void (*alone)(wm_end_t *end))
{
    if (pulls.count == WM_PULLS || pulls.device != end->access.device)
        flush_pulls();
    pulls.device = end->access.device;
    pulls.alone = alone;
    pulls.pulls[pulls.count] = *pull;
    pulls.ends[pulls.count++] = end;
    ++queued;
}

// Announces, of the first `count` sends, those that nobody writes any more,
// and those added before a time.
static void
batch_announce(int count, int64_t before)
{
    wm_end_t *ends[ANNOUNCEMENTS];
    int all = announcements.count, kept = 0, ended = 0;
    batch_ask(announcements.ends, count);
    for (int i = 0; i < all; ++i) {
        wm_end_t *end = announcements.ends[i];
        if (i < count
            && (!wm_access_is_noted(&end->access)
                || announcements.since[i] < before)) {
            ends[ended++] = end;
            continue;
        }
        announcements.since[kept] = announcements.since[i];
        announcements.ends[kept++] = end;
    }
    announcements.count = kept;
    queued -= (uint32_t)ended;
    for (int i = 0; i < ended; ++i) {
        ends[i]->batched = false;
        announcements.announced(ends[i]);
    }
}

void
wm_batch_add_announcement(wm_end_t *end, void (*announced)(wm_end_t *end))
{
    int count = announcements.count++;
    ++queued;
    end->batched = true;
    announcements.ends[count] = end;
    announcements.since[count] = wm_engine_now();
    announcements.announced = announced;
    if (count + 1 == ANNOUNCEMENTS)
        batch_announce(ANNOUNCEMENTS - LATER, INT64_MAX);
}

void
wm_batch_flush(void)
{
    batch_announce(announcements.count, INT64_MAX);
    flush_eager_ll();
    flush_pulls();
}

// Launches the waiting messages that are not held.
static void
batch_flush_due(void)
{
    if (announcements.count > 0)
        batch_announce(announcements.count, wm_engine_now() - SOON_US);
    if (held_until == 0 || wm_engine_now() >= held_until)
        flush_eager_ll();
    flush_pulls();
}

const wm_module_t wm_batch_module = {
    .round = batch_flush_due,
    .queued = &queued,
};
