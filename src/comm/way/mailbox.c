// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/mailbox.h"

#include "array/mail.h"
#include "comm/message/pack.h"
#include "comm/way/batch.h"
#include "comm/way/eager.h"
#include "comm/way/offer.h"
#include "comm/way/pieces.h"
#include "comm/way/rows.h"
#include "comm/way/take.h"
#include "comm/way/transport.h"
#include "cuda/word.h"

#define BOXES 32
// How long a kernel waits for data that were announced, microseconds.
#define PATIENCE_US 100

struct wm_mailbox {
    char *pointer;
    uint32_t flag; // of its latest message
    bool taken;
};

// Those of a device.
typedef struct {
    wm_block_t *block; // NULL: not made
    wm_mailbox_t boxes[BOXES];
} boxes_t;

static boxes_t devices[WM_MAX_DEVICES];

static int
make(int device, boxes_t *boxes, wm_error_t *err)
{
    const size_t size = (size_t)BOXES * WM_MAIL_BOX_BYTES;
    wm_block_t *block;
    CUstream stream;
    int code = wm_mail_prepare(device, err);
    if (code == 0)
        code = wm_block_alloc(device, size, &block, err);
    if (code < 0)
        return code;
    char *memory = wm_block_pointer(block);
    code = wm_stream_acquire(device, &stream, err);
    if (code == 0) {
        code = wm_mail_clear(device, memory, size, stream, err);
        if (code == 0)
            code = wm_stream_synchronize(device, stream, err);
        wm_stream_release(device, stream);
    }
    if (code < 0) {
        wm_block_free(block, 0, NULL, NULL);
        return code;
    }
    for (size_t i = 0; i < BOXES; ++i)
        boxes->boxes[i].pointer = memory + i * WM_MAIL_BOX_BYTES;
    boxes->block = block;
    return 0;
}

// A free one with a new flag, or NULL where all are taken.
static int
acquire(int device, wm_mailbox_t **box, wm_pointer_t *memory, wm_error_t *err)
{
    boxes_t *boxes = &devices[device];
    *box = NULL;
    int code = boxes->block == NULL ? make(device, boxes, err) : 0;
    if (code < 0)
        return code;
    for (int i = 0; i < BOXES && *box == NULL; ++i)
        if (!boxes->boxes[i].taken)
            *box = &boxes->boxes[i];
    if (*box == NULL)
        return 0;
    (*box)->taken = true;
    ++(*box)->flag;
    wm_block_describe(boxes->block, memory);
    return 0;
}

// Whether the user's stream itself posts the message: the buffer is free
// behind that, whenever the receiver comes.
static bool
posts_on_stream(const wm_end_t *end)
{
    return !end->synchronous && end->access.user_device == end->access.device;
}

int
wm_mailbox_offer(wm_end_t *end, char **into, wm_pointer_t *memory,
                 wm_error_t *err)
{
    if (end->header.nbytes > WM_MAIL_BYTES
        || (end->buffer.pattern != NULL && end->gaps.block == NULL
                ? wm_pack_by_mail(end) == NULL
                : end->buffer.memory.exportable && !posts_on_stream(end)))
        return 0;
    int code = acquire(end->access.device, &end->box, memory, err);
    if (code < 0 || end->box == NULL)
        return code;
    end->header.flag = end->box->flag;
    *into = end->box->pointer;
    wm_send_become(end, &wm_sending_mailbox);
    return 0;
}

// When its message was taken, and no kernel comes to it any more.
static void
release(wm_end_t *end)
{
    // After the last flag it is not used any more.
    end->box->taken = end->box->flag == UINT32_MAX;
    end->box = NULL;
}

void
wm_mailbox_take_back_offer(wm_end_t *end)
{
    if (end->box != NULL)
        release(end);
    end->header.flag = 0;
}

void
wm_mailbox_drop(wm_end_t *end, bool quiet)
{
    if (end->box != NULL && (quiet || end->pieces.next == 0))
        release(end);
    end->box = NULL;
}

void
wm_mailbox_give_way(wm_end_t *end)
{
    if (end->box != NULL && !posts_on_stream(end)
        && !atomic_load(&end->op.done) && wm_pack_by_mail(end) == NULL)
        release(end);
}

// A batch tells how launching the kernel went.
static void
posted(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL) {
        end->pieces.next = 0;
        wm_send_fail(end, failure);
        return;
    }
    wm_offer_posted(end);
    if (posts_on_stream(end) && wm_offer_end_for_stream(end, &err) < 0)
        wm_send_fail(end, &err);
}

// A kernel writes the message into its mailbox.
static int
go(wm_end_t *end, wm_error_t *err)
{
    int code = posts_on_stream(end) ? wm_access_open_named(&end->access, err)
                                    : wm_end_open_stream(end, err);
    if (code < 0)
        return code;
    wm_mail_t mail = {
        .box = end->pieces.remote,
        .user = end->buffer.data,
        .strided = wm_pack_by_mail(end),
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->ready,
        .value = end->pieces.ready_base + 1,
    };
    end->pieces.next = 1;
    wm_batch_add(&(wm_batch_t){.device = end->access.device,
                               .stream = end->access.stream,
                               .posts = true},
                 &mail, end, posted);
    if (end->paired && end->access.user_device < 0)
        wm_batch_hold();
    else if (!end->more)
        wm_batch_flush();
    return 0;
}

int
wm_mailbox_copy_out(wm_end_t *end, char *into, uint32_t ready, wm_error_t *err)
{
    wm_mail_t mail = {
        .box = end->box->pointer,
        .user = into,
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->ready,
        .value = ready,
    };
    return wm_mail_launch(end->access.device, NULL, 0, &mail, 1,
                          WM_MAIL_FOR_EVER, end->access.stream, err);
}

const wm_sending_t wm_sending_mailbox = {
    .name = "mailbox",
    .go = go,
    .step = wm_offer_step,
    .let_go = wm_eager_let_go_of_handed_off,
    .fail = wm_offer_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
};

// --- the receiver --------------------------------------------------------

bool
wm_mailbox_is_used(const wm_end_t *end)
{
    return end->header.flag != 0 && end->transport->direct;
}

// Whether the kernel that takes them should be there before them. Not on the
// sender's own device: where processes take turns on it, one would wait
// through its turn for the other.
static bool
waits_in_kernel(const wm_end_t *end)
{
    return !end->fetch.late && !wm_take_is_on_same_gpu(end);
}

static wm_mail_t
fetch_of(const wm_end_t *end)
{
    return (wm_mail_t){
        .box = end->pieces.remote,
        .user = end->buffer.data,
        .strided = wm_pack_by_mail(end),
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->taken,
        .value = end->pieces.taken_base + 1,
    };
}

int
wm_mailbox_fetch_on_stream(wm_end_t *end,
                           void (*launched)(wm_end_t *end,
                                            const wm_error_t *failure),
                           wm_error_t *err)
{
    int device = end->access.user_device;
    int code = wm_mail_prepare(device, err);
    // A stream that waits for a word takes longer than a kernel that does.
    if (code == 0 && !waits_in_kernel(end))
        code = wm_word_wait(device, end->access.user_stream, &end->slot->ready,
                            end->pieces.ready_base + 1, err);
    if (code < 0)
        return code;
    wm_mail_t mail = fetch_of(end);
    mail.stop = &end->slot->failed;
    wm_batch_add(&(wm_batch_t){.device = device,
                               .stream = end->access.user_stream,
                               .patience_us = WM_MAIL_FOR_EVER},
                 &mail, end, launched);
    return 0;
}

static int
fetch(wm_end_t *end, wm_error_t *err)
{
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, end->access.device, err);
    if (code < 0)
        return code;
    wm_mail_t mail = fetch_of(end);
    mail.status = wm_pieces_status(end);
    atomic_store(mail.status, 0);
    end->fetch.under_way = true;
    end->access.idle = false;
    end->pieces.next = 1;
    wm_batch_add(&(wm_batch_t){.device = end->access.device,
                               .stream = end->access.stream,
                               .patience_us = PATIENCE_US},
                 &mail, end, wm_pieces_launched);
    return 0;
}

// 1 when the data are there; they may be late, and are then waited for by the
// host.
static int
fetch_ended(wm_end_t *end, wm_error_t *err)
{
    switch (atomic_load(wm_pieces_status(end))) {
    case WM_MAIL_TAKEN:
        return 1;
    case WM_MAIL_LATE:
        end->fetch.under_way = false;
        end->fetch.late = true;
        end->pieces.next = 0;
        return 0;
    case WM_MAIL_FAILED:
        *err = end->op.error;
        return err->code;
    default:
        return wm_pieces_look_for_errors(end, err);
    }
}

static int
pull(wm_end_t *end, wm_error_t *err)
{
    if (end->fetch.under_way) {
        int code = fetch_ended(end, err);
        end->access.idle = code > 0;
        return code;
    }
    return wm_piece_is_ready(end, 0) || waits_in_kernel(end) ? fetch(end, err)
                                                             : 0;
}

static int
step(wm_end_t *end, wm_error_t *err)
{
    return wm_take_watch(end, pull(end, err), err);
}

const wm_receiving_t wm_receiving_mailbox = {
    .name = "mailbox",
    .step = step,
    .fail = wm_take_fail,
    .peer_died = wm_take_peer_died,
};

void
wm_mailbox_free_all(void)
{
    for (int device = 0; device < WM_MAX_DEVICES; ++device) {
        boxes_t *boxes = &devices[device];
        if (boxes->block != NULL)
            wm_block_free(boxes->block, 0, NULL, NULL);
        *boxes = (boxes_t){0};
    }
}
