// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/offer.h"

#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/pack.h"
#include "comm/message/protocol.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/staging_ring.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/push.h"
#include "comm/protocol/handoff.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/transport.h"
#include "cuda/word.h"

// Sends that begin so soon after each other are many. For these, asking the
// driver about a stream takes longer than recording an event on it.
#define AGAIN_US 20
#define LOOKS 256 // looks at words until we ask the driver for errors
#define LOOKS_FOR_PEER 16

// A payload is offered where the peer can look into our segment.
static bool
offer_try_take(wm_end_t *end)
{
    if (!wm_buffer_on_device(&end->buffer)
        || wm_transport_is_carried(end->peer) || end->peer->segment == NULL
        || (end->slot_index = wm_slot_acquire()) < 0)
        return false;
    end->slot = &wm_node_self()->segment->slots[end->slot_index];
    return true;
}

// Prepares the memory that the receiver maps: the buffer itself, or the memory
// through which it is handed off.
static int
prepare_memory(wm_end_t *end, wm_error_t *err)
{
    wm_pointer_t memory;
    char *into = NULL;
    int code = wm_device_eager_offer(end, &into, &memory, err);
    if (code == 0 && into == NULL)
        code = wm_pack_reserve(end, err);
    if (code == 0
        && end->gaps.block != NULL) // kernels cannot pack it in place
        code = wm_device_eager_offer(end, &into, &memory, err);
    if (code == 0 && into == NULL && end->buffer.memory.exportable)
        return wm_place_export(end->buffer.data, &end->buffer.memory,
                               &end->header.place, err);
    if (code == 0 && into == NULL)
        code = wm_handoff_offer(end, &into, &memory, err);
    if (code == 0)
        code = wm_node_register(wm_node_self(), false, end->access.device,
                                err);
    if (code == 0)
        code = wm_place_export(into, &memory, &end->header.place, err);
    if (code < 0) {
        wm_handoff_drop(end);
        wm_device_eager_take_back_offer(end);
        wm_send_become(end, &wm_sending_offer);
        return code;
    }
    wm_fragments_set(end, into);
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)end->header.nbytes);
    return 0;
}

// Fills the header. If the memory can be neither exported nor handed off, the
// header says that the host must serve. A negative code means a failure of the
// device.
static int
offer_fill(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    const wm_device_t *device;
    wm_slot_begin(end->slot, &header->ready_base, &header->taken_base);
    int code = wm_device_describe(end->access.device, &device, err);
    if (code < 0)
        return code;
    header->kind = WM_MESSAGE_OFFER;
    header->slot = end->slot_index;
    header->fragment = header->nbytes;
    header->fragments = header->ring = 1;
    header->device = device->ordinal;
    memcpy(header->uuid, &device->uuid, sizeof header->uuid);
    wm_fragments_set(end, NULL);
    header->stage_only = wm_transport_forced() == &wm_transport_host
                             ? WM_STAGE_FORCED
                             : WM_STAGE_NOT;
    if (!end->peer->self && !header->stage_only)
        code = prepare_memory(end, err);
    if (code < 0) { // the host serves; wm.transport() at the receiver tells it
        header->stage_only = code == WM_ERR_MEMORY ? WM_STAGE_NOW
                                                   : WM_STAGE_UNEXPORTABLE;
        header->fragment = header->nbytes;
        header->fragments = header->ring = 1;
        header->ramped = 0;
    }
    if (end->sending != &wm_sending_offer)
        return 0;
    // After packing, the sender may go on before the data are taken (eager.c).
    header->pushes = end->blocking && end->access.user_device < 0
                     && !end->peer->self && !header->stage_only
                     && end->buffer.pattern == NULL;
    code = wm_pack_reserve(end, err);
    wm_place_set(end->buffer.data, &end->buffer.memory, &header->place);
    return code;
}

void
wm_offer_posted(wm_end_t *end)
{
    wm_slot_set_posted(end->slot, end->fragments.ready_base + 1);
}

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
    bool idle = end->gaps.block == NULL; // else a kernel was just launched
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
    if (end->blocking || end->access.user_device >= 0
        || end->gaps.block != NULL
        || end->access.producer.kind != WM_PRODUCER_STREAM)
        return false;
    int64_t now = wm_engine_now();
    bool again = now - last < AGAIN_US;
    last = now;
    if (again)
        wm_access_take_note(&end->access);
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
go(wm_end_t *end, wm_error_t *err)
{
    if (!waits_for_others(end))
        return offer_announce(end, err);
    wm_batch_add_announcement(end, announce_noted);
    return 0;
}

int
wm_offer_look(wm_end_t *end, wm_error_t *err)
{
    bool refused = atomic_load(&end->slot->answer) == WM_ANSWER_ERROR;
    int code = end->peer->dead || refused
                   ? wm_failure_look(end->op.comm, end->rank, err)
                   : 0;
    if (code == 0 && refused)
        code = wm_error_set(err, WM_ERR_CUDA, 0,
                            "the receiver, rank %d, failed: %.183s", end->rank,
                            end->slot->error);
    return code;
}

int
wm_offer_end_for_stream(wm_end_t *end, wm_error_t *err)
{
    int code = 0;
    if (end->buffer.order != NULL)
        code = wm_order_after_read(end->buffer.order, end->access.user_device,
                                   end->access.user_stream, err);
    if (code == 0)
        wm_op_complete(&end->op);
    return code;
}

// Lets the user's stream, which sends, go on when the receiver's stream has
// taken the data.
static int
follow_receiver(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    int code = wm_node_register(wm_node_self(), false, device, err);
    if (code == 0)
        code = wm_word_wait(device, end->access.user_stream, &end->slot->taken,
                            end->fragments.taken_base + 1, err);
    return code < 0 ? code : wm_offer_end_for_stream(end, err);
}

int
wm_offer_ended(wm_end_t *end, bool pushed, wm_error_t *err)
{
    int code = 0;
    bool ready = wm_fragments_begun_are_ready(end);
    if (ready && wm_fragments_are_taken(end)) {
        wm_push_note(end, pushed);
        return 1;
    }
    if (++end->looks % LOOKS == 0 && (!ready || pushed))
        code = wm_event_look_for_errors(end->access.device, err);
    if (code == 0 && end->looks % LOOKS_FOR_PEER == 0)
        code = wm_failure_look(end->op.comm, end->rank, err);
    return code;
}

int
wm_offer_step(wm_end_t *end, wm_error_t *err)
{
    const wm_sending_t *protocol = end->sending;
    uint32_t answer = atomic_load(&end->slot->answer);
    int code = wm_offer_look(end, err);
    if (code < 0)
        return code;
    if ((code = wm_eager_step(end, err)) < 0
        || (code = wm_push_serve(end, err)) < 0)
        return code;
    if (end->sending == protocol && answer == WM_ANSWER_HOST
        && (code = wm_staging_ring_begin(end, err)) < 0)
        return code;
    if (end->sending != protocol)
        return end->sending->step(end, err);
    if (atomic_load(&end->slot->submitted) == end->fragments.taken_base + 1
        && end->access.user_device >= 0 && !atomic_load(&end->op.done)
        && end->fragments.count == 1 && (code = follow_receiver(end, err)) < 0)
        return code;
    if (protocol == &wm_sending_handoff && answer != WM_ANSWER_HOST
        && (code = wm_handoff_feed(end, err)) < 0)
        return code;
    return wm_offer_ended(end, false, err);
}

// Returns true if the message comes in spite of the failure: it was posted,
// and the receiver's stream may wait for it already.
static bool
is_on_its_way(const wm_end_t *end)
{
    const wm_fragments_t *fragments = &end->fragments;
    return end->sending->report_early != NULL // nobody has answered
           && atomic_load(&end->slot->claim) != WM_CLAIM_WITHDRAWN
           && fragments->count == 1
           && wm_word_reached(&end->slot->posted, fragments->ready_base + 1)
           && (wm_fragment_is_ready(end, 0)
               || wm_event_look_for_errors(end->access.device, NULL) == 0);
}

bool
wm_offer_fail(wm_end_t *end)
{
    bool comes = is_on_its_way(end);
    if (!comes)
        wm_slot_fail(end->slot, end->op.error.text);
    if (atomic_load(&end->slot->answer) == WM_ANSWER_ERROR)
        wm_offer_peer_died(end); // our user's stream may wait for it
    return comes && end->sending == &wm_sending_offer
           && end->gaps.block == NULL;
}

void
wm_offer_peer_died(wm_end_t *end)
{
    wm_slot_take_for_receiver(end->slot, end->fragments.taken_base
                                             + end->fragments.count);
}

// The slot is not used again, as the receiver may still look at it.
bool
wm_offer_is_abandoned(wm_end_t *end)
{
    if (++end->looks % LOOKS_FOR_PEER != 0
        || wm_failure_look(end->op.comm, end->rank, NULL) == 0)
        return false;
    bool abandoned = end->peer->dead;
    if (!abandoned) {
        wm_slot_fail(end->slot, end->op.error.text);
        abandoned = wm_slot_take_back(end->slot);
    }
    if (end->peer->dead)
        wm_offer_peer_died(end);
    if (abandoned)
        end->slot_index = -1;
    return abandoned;
}

bool
wm_offer_heard(wm_end_t *end)
{
    if (wm_offer_is_abandoned(end))
        return true;
    uint32_t answer = atomic_load(&end->slot->answer);
    bool lost = end->looks % LOOKS == 0 && !wm_fragments_begun_are_ready(end)
                && wm_event_look_for_errors(end->access.device, NULL) < 0;
    // The receiver waits for data that will not come.
    if ((answer == WM_ANSWER_HOST || lost) && !atomic_load(&end->slot->failed))
        wm_slot_fail(end->slot, end->op.error.text);
    return answer == WM_ANSWER_ERROR || wm_fragments_are_taken(end);
}

const wm_sending_t wm_sending_offer = {
    .name = "direct",
    .try_take = offer_try_take,
    .offer = offer_fill,
    .go = go,
    .step = wm_offer_step,
    .report_early = wm_eager_report_copied,
    .fail = wm_offer_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
};
