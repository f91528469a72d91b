// SPDX-License-Identifier: BSD-3-Clause
// Offers of the memory in which the message lies: the receiver maps and copies
// it (plain), copies it in this process (self), or has it staged (staged).
#include "comm/engine/engine.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/rows.h"

// Sends that begin so soon after each other are many. For these, asking the
// driver about a stream takes longer than recording an event on it.
#define AGAIN_US 20

static void
ready_now(wm_end_t *end)
{
    end->fragments.next = 1;
    wm_slot_set_ready(end->slot, end->header.ready_base + 1);
    wm_offer_posted(end);
}

// Enqueues the write of `ready`, after the work that writes the buffer.
static int
promise(wm_end_t *end, wm_error_t *err)
{
    const wm_producer_t *producer = &end->access.producer;
    bool noted = wm_access_is_noted(&end->access), pooled = false;
    int device = end->access.device, code = 0;
    CUstream stream = end->access.user_stream;
    if (end->access.user_device >= 0)
        device = end->access.user_device;
    else if (producer->kind == WM_PRODUCER_STREAM && !noted) {
        device = producer->device;
        stream = producer->stream;
    }
    else {
        if ((code = wm_stream_acquire(device, &stream, err)) < 0)
            return code;
        pooled = true;
    }
    code = wm_node_register(wm_node_self(), false, device, err);
    if (code == 0 && (noted || pooled || end->access.user_device >= 0))
        code = wm_access_before(&end->access, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_ready(end->slot, device, stream,
                                     end->header.ready_base + 1, err);
    if (code == 0) {
        end->fragments.next = 1;
        wm_offer_posted(end);
    }
    if (pooled)
        wm_stream_release(device, stream);
    return code;
}

// Writes `ready` at once if nobody writes the buffer any more, else enqueues
// the write after that work.
static int
offer_announce(wm_end_t *end, wm_error_t *err)
{
    const wm_producer_t *producer = &end->access.producer;
    bool idle = end->around == NULL; // else a kernel was just launched
    int code = 0;
    // Captures were refused when the message began.
    if (idle)
        code = producer->kind == WM_PRODUCER_STREAM
                   ? wm_stream_spin(producer->device, producer->stream, 1,
                                    &idle, err)
                   : wm_producer_idle(producer, false, &idle, err);
    if (code == 0 && idle && end->access.user_device >= 0)
        code = wm_stream_idle(end->access.user_device, end->access.user_stream,
                              &idle, err);
    if (code < 0)
        return code;
    if (!idle)
        return promise(end, err);
    ready_now(end);
    return 0;
}

// Returns true if we ask the driver about this send together with others; then
// the send has noted its buffer's stream.
static bool
waits_for_others(wm_end_t *end)
{
    static int64_t last; // engine lock
    if (end->blocking || end->access.user_device >= 0 || end->around != NULL
        || end->access.producer.kind != WM_PRODUCER_STREAM)
        return false;
    int64_t now = wm_engine_now();
    bool again = now - last < AGAIN_US;
    last = now;
    if (again)
        wm_access_record(&end->access);
    return wm_access_is_noted(&end->access);
}

// Announces a send about which the driver was asked.
static void
announce_noted(wm_end_t *end)
{
    wm_error_t err;
    if (!wm_access_is_noted(&end->access))
        ready_now(end);
    else if (promise(end, &err) < 0)
        wm_send_fail(end, &err);
}

static int
plain_go(wm_end_t *end, wm_error_t *err)
{
    if (!waits_for_others(end))
        return offer_announce(end, err);
    wm_batch_add_announcement(end, announce_noted);
    return 0;
}

static bool
plain_fail(wm_end_t *end)
{
    // Packed data end with the send.
    return wm_offer_fail_posted(end) && end->around == NULL;
}

// --- to this process -----------------------------------------------------

static bool
self_try_take(wm_end_t *end, const char **why)
{
    *why = "another process";
    return end->peer->self && wm_offer_open(end, why);
}

// The receiver reaches the memory by its address, or not at all.
static int
self_offer(wm_end_t *end, wm_error_t *err)
{
    wm_rkey_set(end->buffer.data, &end->buffer.memory, &end->header.place);
    return wm_offer_describe(end, WM_STAGE_NOT, err);
}

const wm_sending_t wm_sending_self = {
    .name = "self",
    .try_take = self_try_take,
    .offer = self_offer,
    .go = plain_go,
    .step = wm_offer_step,
    .report_early = wm_eager_report_copied,
    .fail = plain_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .drop = wm_eager_drop,
};

// --- to a process that maps the memory -----------------------------------

static bool
plain_try_take(wm_end_t *end, const char **why)
{
    wm_error_t err;
    if (!wm_offer_open_mapped(end, why))
        return false;
    *why = "CUDA IPC does not export the memory";
    if (!end->buffer.memory.exportable)
        return false;
    if (wm_rkey_export(end->buffer.data, &end->buffer.memory,
                       &end->header.place, &err)
        < 0) {
        *why = wm_offer_note(end, &err);
        return false;
    }
    return true;
}

static int
plain_offer(wm_end_t *end, wm_error_t *err)
{
    // After packing, the sender may go on before the data are taken (eager.c).
    end->header.pushes = end->blocking && end->access.user_device < 0
                         && end->buffer.pattern == NULL;
    return wm_offer_describe(end, WM_STAGE_NOT, err);
}

static int
plain_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_begin_step(end, err);
    if (code == 0)
        code = wm_push_serve(end, err);
    if (code > 0)
        return end->sending->step(end, err);
    return code < 0 ? code : wm_offer_end_step(end, err);
}

const wm_sending_t wm_sending_plain = {
    .name = "plain offer",
    .try_take = plain_try_take,
    .offer = plain_offer,
    .go = plain_go,
    .step = plain_step,
    .report_early = wm_eager_report_copied,
    .fail = plain_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .drop = wm_eager_drop,
};

// --- to a process that maps nothing: it asks for a staging ring -----------

// wm.transport() at the receiver tells why.
static int
staged_offer(wm_end_t *end, wm_error_t *err)
{
    wm_rkey_set(end->buffer.data, &end->buffer.memory, &end->header.place);
    return wm_offer_describe(end,
                             wm_link_is_asked(&wm_link_host)
                                 ? WM_STAGE_FORCED
                                 : (wm_stage_t)end->header.stage_only,
                             err);
}

const wm_sending_t wm_sending_staged = {
    .name = "staged",
    .try_take = wm_offer_open,
    .offer = staged_offer,
    .go = plain_go,
    .step = wm_offer_step,
    .report_early = wm_eager_report_copied,
    .fail = plain_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .drop = wm_eager_drop,
};
