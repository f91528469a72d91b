// SPDX-License-Identifier: BSD-3-Clause
#include "comm/offer.h"

#include <string.h>

#include "comm/mapping.h"
#include "comm/pack.h"
#include "comm/pieces.h"
#include "comm/progress.h"
#include "comm/stats.h"
#include "comm/transport.h"
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
prepare_box(wm_op_t *op, char **into, wm_pointer_t *memory, wm_error_t *err)
{
    bool streamed = op->user_device == op->device && !op->synchronous;
    if (op->header.nbytes > WM_MAIL_BYTES
        || (op->buffer.pattern != NULL && op->packed == NULL
                ? wm_pack_by_mail(op) == NULL
                : op->buffer.memory.exportable && !streamed))
        return 0;
    int code = wm_mailbox_acquire(op->device, &op->box, memory, err);
    if (code < 0 || op->box == NULL)
        return code;
    op->header.flag = wm_mailbox_flag(op->box);
    *into = wm_mailbox_pointer(op->box);
    return 0;
}

// An exportable copy, or a ring of its pieces.
static int
prepare_ring(wm_op_t *op, char **into, wm_pointer_t *memory, wm_error_t *err)
{
    wm_header_t *header = &op->header;
    if (header->nbytes > 2 * RING_PIECE) {
        header->piece = RING_PIECE;
        header->ring = RING_PIECES;
        header->ramped = 1;
        header->pieces = wm_pieces_count_ramped(header->nbytes, RING_PIECE);
    }
    int code = wm_block_alloc(op->device, header->piece * header->ring,
                              &op->handoff, err);
    if (code < 0)
        return code;
    wm_block_describe(op->handoff, memory);
    *into = wm_block_pointer(op->handoff);
    return 0;
}

// What the receiver is to map: the memory itself, else what it is handed off
// through.
static int
prepare_memory(wm_op_t *op, wm_error_t *err)
{
    wm_header_t *header = &op->header;
    wm_pointer_t memory;
    char *into;
    int code = prepare_box(op, &into, &memory, err);
    if (code == 0 && op->box == NULL)
        code = wm_pack_reserve(op, err);
    if (code == 0 && op->packed != NULL) // what the kernels could not pack
        code = prepare_box(op, &into, &memory, err);
    if (code == 0 && op->box == NULL && op->buffer.memory.exportable)
        return wm_place_export(op->buffer.data, &op->buffer.memory,
                               &header->place, err);
    if (code == 0 && op->box == NULL)
        code = prepare_ring(op, &into, &memory, err);
    if (code == 0)
        code = wm_node_register(wm_node_self(), false, op->device, err);
    if (code == 0)
        code = wm_place_export(into, &memory, &header->place, err);
    if (code < 0) {
        if (op->handoff != NULL)
            wm_block_free(op->handoff, 0, NULL, NULL);
        if (op->box != NULL)
            wm_mailbox_release(op->box);
        op->handoff = NULL;
        op->box = NULL;
        header->flag = 0;
        return code;
    }
    op->pieces = (wm_pieces_t){
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
wm_offer_hands_off(const wm_op_t *op)
{
    return op->handoff != NULL || op->box != NULL;
}

void
wm_offer_posted(wm_op_t *op)
{
    wm_slot_set_posted(op->slot, op->pieces.ready_base + 1);
}

static void
ready_now(wm_op_t *op)
{
    op->pieces.next = 1;
    wm_slot_set_ready(op->slot, op->header.ready_base + 1);
    wm_offer_posted(op);
}

// A stream writes the word, behind who writes the buffer.
static int
promise(wm_op_t *op, wm_error_t *err)
{
    const wm_producer_t *producer = &op->buffer.producer;
    bool noted = op->after[0].event != NULL, pooled = false;
    int device = op->device, code = 0;
    CUstream stream = op->user_stream;
    if (op->user_device >= 0)
        device = op->user_device;
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
        code = wm_stream_wait_event(device, stream, op->after[0].event, err);
    else if (code == 0 && (pooled || op->user_device >= 0))
        code = wm_producer_before(producer, false, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_ready(op->slot, device, stream,
                                     op->header.ready_base + 1, err);
    if (code == 0) {
        op->pieces.next = 1;
        wm_offer_posted(op);
    }
    if (pooled)
        wm_stream_release(device, stream);
    return code;
}

int
wm_offer_announce(wm_op_t *op, wm_error_t *err)
{
    const wm_producer_t *producer = &op->buffer.producer;
    bool idle = op->packed == NULL; // else a kernel was just launched
    int code = 0;
    // Whether it is being captured was asked when the message was begun.
    if (idle)
        code = producer->kind == WM_PRODUCER_STREAM
                   ? wm_stream_spin(producer->device, producer->stream, 1,
                                    &idle, err)
                   : wm_producer_idle(producer, false, &idle, err);
    if (code == 0 && idle && op->user_device >= 0)
        code = wm_stream_idle(op->user_device, op->user_stream, &idle, err);
    if (code < 0)
        return code;
    if (!idle)
        return promise(op, err);
    ready_now(op);
    return 0;
}

bool
wm_offer_waits_to_announce(wm_op_t *op)
{
    static int64_t last; // the engine lock's
    if (op->blocking || op->user_device >= 0 || op->packed != NULL
        || op->buffer.producer.kind != WM_PRODUCER_STREAM)
        return false;
    int64_t now = wm_engine_now();
    bool again = now - last < AGAIN_US;
    last = now;
    if (again)
        wm_op_take_note(op);
    return op->after[0].event != NULL;
}

int
wm_offer_announce_noted(wm_op_t *op, wm_error_t *err)
{
    if (op->after[0].event != NULL)
        return promise(op, err);
    ready_now(op);
    return 0;
}

int
wm_offer_prepare(wm_op_t *op, wm_error_t *err)
{
    wm_header_t *header = &op->header;
    const wm_device_t *device;
    wm_slot_begin(op->slot, &header->ready_base, &header->taken_base);
    int code = wm_device_describe(op->device, &device, err);
    if (code < 0)
        return code;
    header->kind = WM_MESSAGE_OFFER;
    header->slot = op->slot_index;
    header->piece = header->nbytes;
    header->pieces = header->ring = 1;
    header->device = device->ordinal;
    memcpy(header->uuid, &device->uuid, sizeof header->uuid);
    op->pieces.pieces = 1;
    op->pieces.ready_base = header->ready_base;
    op->pieces.taken_base = header->taken_base;
    header->stage_only = wm_transport_forced() == &wm_transport_host
                             ? WM_STAGE_FORCED
                             : WM_STAGE_NOT;
    if (!op->peer->self && !header->stage_only)
        code = prepare_memory(op, err);
    if (code < 0) { // the host serves; the receiver's transport() tells it
        header->stage_only = code == WM_ERR_MEMORY ? WM_STAGE_NOW
                                                   : WM_STAGE_UNEXPORTABLE;
        header->piece = header->nbytes;
        header->pieces = header->ring = 1;
        header->ramped = 0;
    }
    if (wm_offer_hands_off(op))
        return 0;
    // Of one that is packed the sender may go on before it is taken (eager.c).
    header->pushes = op->blocking && op->user_device < 0 && !op->peer->self
                     && !header->stage_only && op->buffer.pattern == NULL;
    code = wm_pack_reserve(op, err);
    wm_place_set(op->buffer.data, &op->buffer.memory, &header->place);
    return code;
}
