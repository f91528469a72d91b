// SPDX-License-Identifier: BSD-3-Clause
#include "comm/batch.h"

typedef struct {
    wm_op_t *op;
    void (*launched)(wm_op_t *op, const wm_error_t *failure);
} member_t;

typedef struct {
    wm_batch_t of;
    int count;
    wm_mail_t mails[WM_MAILS];
    member_t members[WM_MAILS];
} waiting_t;

static waiting_t posts, fetches; // the engine lock's

static void
flush(waiting_t *waiting)
{
    wm_error_t err;
    const wm_batch_t *of = &waiting->of;
    int count = waiting->count, code;
    if (count == 0)
        return;
    if (of->posts)
        code = wm_mail_post(of->device, waiting->mails, count, of->stream,
                            &err);
    else
        code = wm_mail_fetch(of->device, waiting->mails, count,
                             of->patience_us, of->stream, &err);
    waiting->count = 0;
    for (int i = 0; i < count; ++i)
        waiting->members[i].launched(waiting->members[i].op,
                                     code < 0 ? &err : NULL);
}

static bool
is_same(const wm_batch_t *a, const wm_batch_t *b)
{
    return a->device == b->device && a->stream == b->stream
           && a->patience_us == b->patience_us;
}

void
wm_batch_add(const wm_batch_t *batch, const wm_mail_t *mail, wm_op_t *op,
             void (*launched)(wm_op_t *op, const wm_error_t *failure))
{
    waiting_t *waiting = batch->posts ? &posts : &fetches;
    if (waiting->count == WM_MAILS || !is_same(&waiting->of, batch))
        flush(waiting);
    waiting->of = *batch;
    waiting->mails[waiting->count] = *mail;
    waiting->members[waiting->count++] = (member_t){op, launched};
}

void
wm_batch_flush(void)
{
    flush(&posts);
    flush(&fetches);
}
