// SPDX-License-Identifier: BSD-3-Clause
// Pulling pieces out of a ring, and feeding one: the sender writes piece i
// and then `ready`, the receiver takes it and then writes `taken`, which
// frees its place in the ring. A plain offer is a ring of one piece.
#include <string.h>

#include "comm/mapping.h"
#include "comm/progress.h"
#include "comm/stats.h"
#include "comm/transport.h"
#include "array/copy.h"
#include "cuda/word.h"

#define SYNC_BYTES 262144

static uint64_t
piece_length(const wm_op_t *op, uint32_t index)
{
    uint64_t at = index * op->pieces.piece;
    uint64_t left = op->header.nbytes - at;
    return left < op->pieces.piece ? left : op->pieces.piece;
}

// The user's stream takes the piece: nothing is waited for here.
static int
pull_on_stream(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    int device = op->user_device;
    CUstream stream = op->user_stream;
    int code = wm_node_register(op->peer, false, device, err);
    if (code == 0)
        code = wm_producer_before(&op->buffer.producer, true, device, stream,
                                  err);
    if (code == 0)
        code = wm_event_acquire(device, &op->event, err);
    if (code == 0)
        code = wm_word_wait(device, stream, &op->slot->ready,
                            pieces->ready_base + 1, err);
    if (code == 0)
        code = wm_memory_copy(device, op->buffer.data, pieces->remote,
                              op->header.nbytes, stream, err);
    if (code == 0)
        code = wm_word_write(device, stream, &op->slot->taken,
                             pieces->taken_base + 1, err);
    if (code == 0)
        code = wm_event_record(device, op->event, stream, err);
    if (code == 0 && op->buffer.order != NULL)
        code = wm_order_after_write(op->buffer.order, device, stream, err);
    if (code < 0)
        return code;
    pieces->next = 1;
    atomic_store(&op->slot->answer, WM_ANSWER_SUBMITTED);
    wm_op_complete(op);
    return 0;
}

// Pieces are copied by this thread: host memory to host memory.
static int
pull_on_host(wm_op_t *op)
{
    wm_pieces_t *pieces = &op->pieces;
    while (pieces->next < pieces->pieces
           && wm_word_reached(&op->slot->ready,
                              pieces->ready_base + pieces->next + 1)) {
        uint32_t at = pieces->next++;
        memcpy(op->buffer.data + at * pieces->piece,
               pieces->remote + at % pieces->ring * pieces->piece,
               piece_length(op, at));
        atomic_store(&op->slot->taken, pieces->taken_base + pieces->next);
    }
    return pieces->next == pieces->pieces;
}

int
wm_pieces_pull(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    int code;
    if (pieces->on_host)
        return pull_on_host(op);
    bool idle;
    if (op->event != NULL) { // on the user's stream
        code = wm_event_done(op->user_device, op->event, &idle, err);
        return code < 0 ? code : idle;
    }
    if (op->user_device >= 0 && pieces->pieces == 1 && op->transport->direct)
        return pull_on_stream(op, err);
    while (pieces->next < pieces->pieces
           && wm_word_reached(&op->slot->ready,
                              pieces->ready_base + pieces->next + 1)) {
        if ((code = wm_op_open_stream(op, err)) < 0)
            return code;
        if (pieces->pieces > 1
            && (code = wm_node_register(op->peer, false, op->device, err)) < 0)
            return code;
        uint32_t at = pieces->next;
        op->idle = false;
        code = wm_memory_copy(op->device, op->buffer.data + at * pieces->piece,
                              pieces->remote
                                  + at % pieces->ring * pieces->piece,
                              piece_length(op, at), op->stream, err);
        if (code == 0 && at + 1 < pieces->pieces)
            code = wm_word_write(op->device, op->stream, &op->slot->taken,
                                 pieces->taken_base + at + 1, err);
        if (code < 0)
            return code;
        ++pieces->next;
    }
    if (pieces->next < pieces->pieces)
        return 0;
    // A small copy ends within microseconds, and a query alone takes one: a
    // caller that waits does so in the driver, without the lock.
    if (op->blocking && op->header.nbytes <= SYNC_BYTES) {
        idle = atomic_load(&op->synchronized);
        if (idle && op->sync_code < 0) {
            *err = op->error;
            return op->sync_code;
        }
        if (!idle)
            atomic_store(&op->news, 1);
    }
    else if ((code = wm_stream_spin(op->device, op->stream, 2, &idle, err))
             < 0)
        return code;
    if (!idle)
        return 0;
    op->idle = true;
    atomic_store(&op->slot->taken, pieces->taken_base + pieces->pieces);
    return 1;
}

int
wm_pieces_feed(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    int code;
    while (pieces->next < pieces->pieces
           && (pieces->next < pieces->ring
               || wm_word_reached(&op->slot->taken, pieces->taken_base
                                                        + pieces->next + 1
                                                        - pieces->ring))) {
        if ((code = wm_op_open_stream(op, err)) < 0)
            return code;
        uint32_t at = pieces->next;
        char *into = pieces->remote + at % pieces->ring * pieces->piece;
        char *from = op->buffer.data + at * pieces->piece;
        uint64_t length = piece_length(op, at);
        uint32_t ready = pieces->ready_base + at + 1;
        if (op->handoff != NULL && length <= WM_ANNOUNCE_BYTES)
            code = wm_copy_announce(op->device, into, from, length,
                                    &op->slot->ready, ready, op->stream, err);
        else {
            code = wm_memory_copy(op->device, into, from, length, op->stream,
                                  err);
            if (code == 0)
                code = wm_word_write(op->device, op->stream, &op->slot->ready,
                                     ready, err);
        }
        if (code < 0)
            return code;
        ++pieces->next;
    }
    return wm_word_reached(&op->slot->taken,
                           pieces->taken_base + pieces->pieces);
}
