// SPDX-License-Identifier: BSD-3-Clause
#include "comm/batch.h"

#include "comm/progress.h"

#define ANNOUNCEMENTS 32
// So many later ones there are when the driver is asked about the others: an
// event just recorded has not ended for some microseconds, idle as its stream
// may be.
#define LATER 8
#define SOON_US 10 // what has not ended then takes longer
#define HOLD_US 8  // a header takes one or two

typedef struct {
    wm_op_t *op;
    void (*launched)(wm_op_t *op, const wm_error_t *failure);
} member_t;

typedef struct {
    int count;
    wm_mail_t mails[WM_MAILS];
    member_t members[WM_MAILS];
} waiting_t;

// The engine lock's. Both kinds go out as one kernel.
static wm_batch_t common; // to what waits
static waiting_t posts, fetches;
static int64_t held_until; // microseconds; 0: not held

static struct {
    int device, count;
    wm_pull_t pulls[WM_PULLS];
    member_t members[WM_PULLS];
    void (*alone[WM_PULLS])(wm_op_t *op);
} pulls; // likewise

static struct {
    int count;
    wm_op_t *ops[ANNOUNCEMENTS];
    int64_t since[ANNOUNCEMENTS];
    void (*announced[ANNOUNCEMENTS])(wm_op_t *op);
} announcements;

// Telling an operation of a failure may come back here: nothing waits then.
static void
flush_mails(void)
{
    wm_error_t err;
    member_t members[WM_MAILS];
    int count = posts.count + fetches.count;
    if (count == 0)
        return;
    for (int i = 0; i < count; ++i)
        members[i] = i < posts.count ? posts.members[i]
                                     : fetches.members[i - posts.count];
    int code = wm_mail_launch(common.device, posts.mails, posts.count,
                              fetches.mails, fetches.count, common.patience_us,
                              common.stream, &err);
    posts.count = fetches.count = 0;
    held_until = 0;
    for (int i = 0; i < count; ++i)
        members[i].launched(members[i].op, code < 0 ? &err : NULL);
}

static bool
fits(const wm_batch_t *batch)
{
    return posts.count + fetches.count < WM_MAILS
           && common.device == batch->device && common.stream == batch->stream
           && (fetches.count == 0 || batch->posts
               || common.patience_us == batch->patience_us);
}

void
wm_batch_add(const wm_batch_t *batch, const wm_mail_t *mail, wm_op_t *op,
             void (*launched)(wm_op_t *op, const wm_error_t *failure))
{
    if (!fits(batch))
        flush_mails();
    waiting_t *waiting = batch->posts ? &posts : &fetches;
    common.device = batch->device;
    common.stream = batch->stream;
    if (!batch->posts) {
        common.patience_us = batch->patience_us;
        held_until = 0; // what was held for it goes with it
    }
    waiting->mails[waiting->count] = *mail;
    waiting->members[waiting->count++] = (member_t){op, launched};
}

void
wm_batch_hold(void)
{
    if (posts.count > 0 && fetches.count == 0)
        held_until = wm_engine_now() + HOLD_US;
}

// Asks about the buffers' users: of those on one stream the last tells of all,
// where it has ended. True at the end where nobody uses the buffer.
static void
ask(wm_op_t *const *ops, int count)
{
    for (int i = count - 1; i >= 0; --i) {
        bool ended = false, newest = true;
        if (ops[i]->after[0].event == NULL)
            continue;
        for (int k = count - 1; k >= 0 && newest; --k)
            newest = k == i || ops[k]->after[0].event == NULL
                     || !wm_op_note_covers(ops[k], ops[i]);
        if (!newest
            || wm_event_done(ops[i]->after[0].device, ops[i]->after[0].event,
                             &ended, NULL)
                   < 0
            || !ended)
            continue;
        for (int k = 0; k < count; ++k)
            if (k != i && ops[k]->after[0].event != NULL
                && wm_op_note_covers(ops[i], ops[k]))
                wm_op_note_ended(ops[k]);
        wm_op_note_ended(ops[i]);
    }
}

// Whether a copy into its buffer waits for nobody.
static bool
is_free(const wm_op_t *op)
{
    return op->after[0].event == NULL
           && op->buffer.producer.kind == WM_PRODUCER_NONE;
}

static int
launch_pulls(int device, wm_pull_params_t *params, wm_op_t *const *ops,
             wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    for (uint32_t i = 0; i < params->count; ++i)
        ops[i]->stream = stream;
    code = wm_pull_launch(device, params, stream, err);
    wm_stream_release(device, stream);
    return code;
}

static void
flush_some_pulls(void)
{
    wm_pull_params_t params = {.count = 0}; // a few KiB
    wm_op_t *ops[WM_PULLS];
    member_t members[WM_PULLS];
    wm_error_t err;
    int count = pulls.count, code = 0;
    pulls.count = 0;
    for (int i = 0; i < count; ++i)
        ops[i] = pulls.members[i].op;
    if (count > 1)
        ask(ops, count);
    for (int i = 0; i < count; ++i) {
        if (count == 1 || !is_free(ops[i])) {
            pulls.alone[i](ops[i]);
            continue;
        }
        members[params.count] = pulls.members[i];
        ops[params.count] = ops[i];
        params.pulls[params.count++] = pulls.pulls[i];
    }
    if (params.count > 0)
        code = launch_pulls(pulls.device, &params, ops, &err);
    for (uint32_t i = 0; i < params.count; ++i)
        members[i].launched(members[i].op, code < 0 ? &err : NULL);
}

static void
flush_pulls(void)
{
    if (pulls.count > 0) // every message comes by here
        flush_some_pulls();
}

void
wm_batch_add_pull(const wm_pull_t *pull, wm_op_t *op,
                  void (*launched)(wm_op_t *op, const wm_error_t *failure),
                  void (*alone)(wm_op_t *op))
{
    if (pulls.count == WM_PULLS || pulls.device != op->device)
        flush_pulls();
    pulls.device = op->device;
    pulls.pulls[pulls.count] = *pull;
    pulls.alone[pulls.count] = alone;
    pulls.members[pulls.count++] = (member_t){op, launched};
}

// Announces, of the first `count`, those that nobody writes any more, or that
// came before a time.
static void
announce(int count, int64_t before)
{
    wm_op_t *ops[ANNOUNCEMENTS];
    void (*announced[ANNOUNCEMENTS])(wm_op_t * op);
    int all = announcements.count, kept = 0, gone = 0;
    ask(announcements.ops, count);
    for (int i = 0; i < all; ++i) {
        wm_op_t *op = announcements.ops[i];
        if (i < count
            && (op->after[0].event == NULL
                || announcements.since[i] < before)) {
            ops[gone] = op;
            announced[gone++] = announcements.announced[i];
            continue;
        }
        announcements.ops[kept] = op;
        announcements.since[kept] = announcements.since[i];
        announcements.announced[kept++] = announcements.announced[i];
    }
    announcements.count = kept;
    for (int i = 0; i < gone; ++i) {
        ops[i]->batched = false;
        announced[i](ops[i]);
    }
}

void
wm_batch_add_announcement(wm_op_t *op, void (*announced)(wm_op_t *op))
{
    int count = announcements.count++;
    op->batched = true;
    announcements.ops[count] = op;
    announcements.since[count] = wm_engine_now();
    announcements.announced[count] = announced;
    if (count + 1 == ANNOUNCEMENTS)
        announce(ANNOUNCEMENTS - LATER, INT64_MAX);
}

void
wm_batch_flush(void)
{
    announce(announcements.count, INT64_MAX);
    flush_mails();
    flush_pulls();
}

void
wm_batch_flush_due(void)
{
    if (announcements.count > 0)
        announce(announcements.count, wm_engine_now() - SOON_US);
    if (held_until == 0 || wm_engine_now() >= held_until)
        flush_mails();
    flush_pulls();
}
