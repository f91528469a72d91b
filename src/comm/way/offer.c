// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/offer.h"

#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/pack.h"
#include "comm/node/mapping.h"
#include "comm/way/pieces.h"
#include "comm/way/transport.h"
#include "cuda/word.h"

// Sends begun so soon after each other are many: asking the driver about a
// stream takes longer than recording an event on it.
#define AGAIN_US 20
// Of memory that is handed off: each piece costs a copy's start, 3 us or more.
#define RING_PIECE ((uint64_t)24 << 20)
#define RING_PIECES 3

// A mailbox, where the message is short and one is free: for memory that CUDA
// IPC cannot export, for a user's stream, which need not wait then, and for
// what has gaps, which is packed on its way into it.
static int
prepare_box(wm_end_t *end, char **into, wm_pointer_t *memory, wm_error_t *err)
{
    bool streamed = end->access.user_device == end->access.device
                    && !end->synchronous;
    if (end->header.nbytes > WM_MAIL_BYTES
        || (end->buffer.pattern != NULL && end->packed == NULL
                ? wm_pack_by_mail(end) == NULL
                : end->buffer.memory.exportable && !streamed))
        return 0;
    int code = wm_mailbox_acquire(end->access.device, &end->box, memory, err);
    if (code < 0 || end->box == NULL)
        return code;
    end->header.flag = wm_mailbox_flag(end->box);
    *into = wm_mailbox_pointer(end->box);
    return 0;
}

// An exportable copy, or a ring of its pieces.
static int
prepare_ring(wm_end_t *end, char **into, wm_pointer_t *memory, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    if (header->nbytes > 2 * RING_PIECE) {
        header->piece = RING_PIECE;
        header->ring = RING_PIECES;
        header->ramped = 1;
        header->pieces = wm_pieces_count_ramped(header->nbytes, RING_PIECE);
    }
    int code = wm_block_alloc(end->access.device, header->piece * header->ring,
                              &end->handoff, err);
    if (code < 0)
        return code;
    wm_block_describe(end->handoff, memory);
    *into = wm_block_pointer(end->handoff);
    return 0;
}

// What the receiver is to map: the memory itself, else what it is handed off
// through.
static int
prepare_memory(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    wm_pointer_t memory;
    char *into;
    int code = prepare_box(end, &into, &memory, err);
    if (code == 0 && end->box == NULL)
        code = wm_pack_reserve(end, err);
    if (code == 0 && end->packed != NULL) // what the kernels could not pack
        code = prepare_box(end, &into, &memory, err);
    if (code == 0 && end->box == NULL && end->buffer.memory.exportable)
        return wm_place_export(end->buffer.data, &end->buffer.memory,
                               &header->place, err);
    if (code == 0 && end->box == NULL)
        code = prepare_ring(end, &into, &memory, err);
    if (code == 0)
        code = wm_node_register(wm_node_self(), false, end->access.device,
                                err);
    if (code == 0)
        code = wm_place_export(into, &memory, &header->place, err);
    if (code < 0) {
        if (end->handoff != NULL)
            wm_block_free(end->handoff, 0, NULL, NULL);
        if (end->box != NULL)
            wm_mailbox_release(end->box);
        end->handoff = NULL;
        end->box = NULL;
        header->flag = 0;
        return code;
    }
    end->pieces = (wm_pieces_t){
        .remote = into,
        .piece = header->piece,
        .pieces = header->pieces,
        .ring = header->ring,
        .ramped = header->ramped,
        .ready_base = header->ready_base,
        .taken_base = header->taken_base,
    };
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)header->nbytes);
    return 0;
}

bool
wm_offer_hands_off(const wm_end_t *end)
{
    return end->handoff != NULL || end->box != NULL;
}

void
wm_offer_posted(wm_end_t *end)
{
    wm_slot_set_posted(end->slot, end->pieces.ready_base + 1);
}

static void
ready_now(wm_end_t *end)
{
    end->pieces.next = 1;
    wm_slot_set_ready(end->slot, end->header.ready_base + 1);
    wm_offer_posted(end);
}

// A stream writes the word, behind who writes the buffer.
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
    if (code == 0 && noted)
        code = wm_stream_wait_event(device, stream, end->access.after[0].event,
                                    err);
    else if (code == 0 && (pooled || end->access.user_device >= 0))
        code = wm_producer_before(producer, false, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_ready(end->slot, device, stream,
                                     end->header.ready_base + 1, err);
    if (code == 0) {
        end->pieces.next = 1;
        wm_offer_posted(end);
    }
    if (pooled)
        wm_stream_release(device, stream);
    return code;
}

int
wm_offer_announce(wm_end_t *end, wm_error_t *err)
{
    const wm_producer_t *producer = &end->access.producer;
    bool idle = end->packed == NULL; // else a kernel was just launched
    int code = 0;
    // Whether it is being captured was asked when the message was begun.
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

bool
wm_offer_waits_to_announce(wm_end_t *end)
{
    static int64_t last; // the engine lock's
    if (end->blocking || end->access.user_device >= 0 || end->packed != NULL
        || end->access.producer.kind != WM_PRODUCER_STREAM)
        return false;
    int64_t now = wm_engine_now();
    bool again = now - last < AGAIN_US;
    last = now;
    if (again)
        wm_access_take_note(&end->access);
    return wm_access_is_noted(&end->access);
}

int
wm_offer_announce_noted(wm_end_t *end, wm_error_t *err)
{
    if (wm_access_is_noted(&end->access))
        return promise(end, err);
    ready_now(end);
    return 0;
}

int
wm_offer_prepare(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    const wm_device_t *device;
    wm_slot_begin(end->slot, &header->ready_base, &header->taken_base);
    int code = wm_device_describe(end->access.device, &device, err);
    if (code < 0)
        return code;
    header->kind = WM_MESSAGE_OFFER;
    header->slot = end->slot_index;
    header->piece = header->nbytes;
    header->pieces = header->ring = 1;
    header->device = device->ordinal;
    memcpy(header->uuid, &device->uuid, sizeof header->uuid);
    end->pieces.pieces = 1;
    end->pieces.ready_base = header->ready_base;
    end->pieces.taken_base = header->taken_base;
    header->stage_only = wm_transport_forced() == &wm_transport_host
                             ? WM_STAGE_FORCED
                             : WM_STAGE_NOT;
    if (!end->peer->self && !header->stage_only)
        code = prepare_memory(end, err);
    if (code < 0) { // the host serves; the receiver's transport() tells it
        header->stage_only = code == WM_ERR_MEMORY ? WM_STAGE_NOW
                                                   : WM_STAGE_UNEXPORTABLE;
        header->piece = header->nbytes;
        header->pieces = header->ring = 1;
        header->ramped = 0;
    }
    if (wm_offer_hands_off(end))
        return 0;
    // Of one that is packed the sender may go on before it is taken (eager.c).
    header->pushes = end->blocking && end->access.user_device < 0
                     && !end->peer->self && !header->stage_only
                     && end->buffer.pattern == NULL;
    code = wm_pack_reserve(end, err);
    wm_place_set(end->buffer.data, &end->buffer.memory, &header->place);
    return code;
}
