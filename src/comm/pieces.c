// SPDX-License-Identifier: BSD-3-Clause
// Pulling pieces out of a ring, and feeding one: the sender writes piece i
// and then `ready`, the receiver takes it and then writes `taken`, which
// frees its place in the ring. A plain offer is a ring of one piece.
#include "comm/pieces.h"

#include <string.h>

#include "comm/batch.h"
#include "comm/offer.h"
#include "comm/pack.h"
#include "comm/transport.h"
#include "cuda/word.h"

#define SYNC_BYTES 262144
// How long a kernel waits for data that were announced, microseconds.
#define PATIENCE_US 100
#define LOOKS 256 // at words, before the driver is asked for errors

uint32_t
wm_pieces_count_ramped(uint64_t nbytes, uint64_t piece)
{
    uint64_t short_ones = piece / 4 + piece / 2;
    return (uint32_t)(2 + (nbytes - short_ones + piece - 1) / piece);
}

// Where in the message a piece begins. The first ones of a ring are shorter:
// nothing can be taken before they are in it.
static uint64_t
piece_start(const wm_pieces_t *pieces, uint32_t index)
{
    uint64_t piece = pieces->piece;
    if (!pieces->ramped)
        return index * piece;
    return index == 0   ? 0
           : index == 1 ? piece / 4
                        : piece / 4 + piece / 2 + (index - 2) * piece;
}

static uint64_t
piece_length(const wm_op_t *op, uint32_t index)
{
    uint64_t end = piece_start(&op->pieces, index + 1);
    return (end < op->header.nbytes ? end : op->header.nbytes)
           - piece_start(&op->pieces, index);
}

bool
wm_pieces_are_boxed(const wm_op_t *op)
{
    return op->header.flag != 0 && op->transport == &wm_transport_ipc;
}

bool
wm_pieces_on_same_gpu(const wm_op_t *op)
{
    const wm_device_t *device;
    return wm_device_describe(op->device, &device, NULL) < 0
           || memcmp(&device->uuid, op->header.uuid, sizeof op->header.uuid)
                  == 0;
}

// Whether the kernel that takes them should be there before them. Not on the
// sender's own device: where processes take turns on it, one would wait
// through its turn for the other.
static bool
may_wait_in_kernel(const wm_op_t *op)
{
    return !op->late && !wm_pieces_on_same_gpu(op);
}

// A user's stream is not given what waits for a sender who may yet fail.
static bool
is_posted(const wm_op_t *op)
{
    return wm_word_reached(&op->slot->posted, op->pieces.ready_base + 1);
}

static _Atomic uint32_t *
status_of(const wm_op_t *op)
{
    return (_Atomic uint32_t *)(op->packet + WM_PACKET_BYTES);
}

static wm_mail_t
mail_of(const wm_op_t *op)
{
    return (wm_mail_t){
        .box = op->pieces.remote,
        .user = op->buffer.data,
        .strided = wm_pack_by_mail(op),
        .nbytes = op->header.nbytes,
        .flag = op->header.flag,
        .word = &op->slot->taken,
        .value = op->pieces.taken_base + 1,
    };
}

// The user's stream has been given what takes the data.
static int
submitted(wm_op_t *op, wm_error_t *err)
{
    // Ours, where the user may destroy the stream.
    int code = wm_event_record(op->user_device, op->event, op->user_stream,
                               err);
    if (code == 0 && op->buffer.order != NULL)
        code = wm_order_after_write(op->buffer.order, op->user_device,
                                    op->user_stream, err);
    if (code < 0)
        return code;
    op->recorded = true;
    wm_slot_set_submitted(op->slot, op->pieces.taken_base + 1);
    wm_op_complete(op);
    return 0;
}

// A batch tells how launching a kernel went; the next step raises.
static void
tell_failure(wm_op_t *op, const wm_error_t *failure)
{
    wm_op_fail(op, failure);
    atomic_store(status_of(op), WM_MAIL_FAILED);
}

static void
fetch_launched(wm_op_t *op, const wm_error_t *failure)
{
    if (failure != NULL)
        tell_failure(op, failure);
}

static void
fetch_on_stream_launched(wm_op_t *op, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL)
        tell_failure(op, failure);
    else if ((!wm_unpack_is_direct(op)
              && wm_unpack_enqueue(op, op->buffer.data, op->user_device,
                                   op->user_stream, &err)
                     < 0)
             || submitted(op, &err) < 0)
        tell_failure(op, &err);
}

static int
fetch_on_stream(wm_op_t *op, wm_error_t *err)
{
    int device = op->user_device;
    int code = wm_mail_prepare(device, err);
    // A stream that waits for a word takes longer than a kernel that does.
    if (code == 0 && !may_wait_in_kernel(op))
        code = wm_word_wait(device, op->user_stream, &op->slot->ready,
                            op->pieces.ready_base + 1, err);
    if (code < 0)
        return code;
    wm_mail_t mail = mail_of(op);
    mail.stop = &op->slot->failed;
    wm_batch_add(&(wm_batch_t){.device = device,
                               .stream = op->user_stream,
                               .patience_us = WM_MAIL_FOR_EVER},
                 &mail, op, fetch_on_stream_launched);
    return 0;
}

static int
copy_on_stream(wm_op_t *op, wm_error_t *err)
{
    int device = op->user_device;
    CUstream stream = op->user_stream;
    int code = wm_word_wait(device, stream, &op->slot->ready,
                            op->pieces.ready_base + 1, err);
    bool direct = wm_unpack_is_direct(op);
    const char *from = direct ? op->pieces.remote : op->buffer.data;
    if (code == 0 && !direct)
        code = wm_memory_copy(device, op->buffer.data, op->pieces.remote,
                              op->header.nbytes, stream, err);
    if (code == 0)
        code = wm_unpack_enqueue(op, from, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_taken(op->slot, device, stream,
                                     op->pieces.taken_base + 1, err);
    return code < 0 ? code : submitted(op, err);
}

// The user's stream takes the piece: nothing is waited for here.
static int
pull_on_stream(wm_op_t *op, wm_error_t *err)
{
    int device = op->user_device;
    atomic_store(status_of(op), 0);
    op->on_stream = true;
    op->pieces.next = 1;
    int code = wm_event_acquire(device, &op->event, err);
    if (code == 0)
        code = wm_node_register(op->peer, false, device, err);
    if (code == 0)
        code = wm_producer_before(&op->buffer.producer, true, device,
                                  op->user_stream, err);
    if (code == 0)
        code = wm_pieces_are_boxed(op) ? fetch_on_stream(op, err)
                                       : copy_on_stream(op, err);
    return code;
}

// Words tell the end for nothing, but no errors: now and then the driver is
// asked for those.
static int
look_for_errors(wm_op_t *op, wm_error_t *err)
{
    bool unused;
    if (++op->asks % LOOKS != 0)
        return 0;
    if (!op->on_stream)
        return wm_stream_spin(op->device, op->stream, 1, &unused, err);
    // The caller has gone on: only what is lost for good is to be told.
    int code = wm_event_done(op->user_device, op->event, &unused, err);
    return code < 0 && wm_event_look_for_errors(op->user_device, NULL) < 0
               ? code
               : 0;
}

static int
pull_on_stream_ended(wm_op_t *op, wm_error_t *err)
{
    if (atomic_load(status_of(op)) == WM_MAIL_FAILED) {
        *err = op->error;
        return err->code;
    }
    return wm_word_reached(&op->slot->taken, op->pieces.taken_base + 1)
               ? 1
               : look_for_errors(op, err);
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
        memcpy(op->buffer.data + piece_start(pieces, at),
               pieces->remote + at % pieces->ring * pieces->piece,
               piece_length(op, at));
        wm_slot_set_taken(op->slot, pieces->taken_base + pieces->next);
    }
    return pieces->next == pieces->pieces;
}

static int
fetch(wm_op_t *op, wm_error_t *err)
{
    int code = wm_op_open_stream(op, err);
    if (code == 0)
        code = wm_node_register(op->peer, false, op->device, err);
    if (code < 0)
        return code;
    wm_mail_t mail = mail_of(op);
    mail.status = status_of(op);
    atomic_store(mail.status, 0);
    op->fetching = true;
    op->idle = false;
    op->pieces.next = 1;
    wm_batch_add(&(wm_batch_t){.device = op->device,
                               .stream = op->stream,
                               .patience_us = PATIENCE_US},
                 &mail, op, fetch_launched);
    return 0;
}

// 1 when the data are there; they may be late, and are then waited for by the
// host.
static int
fetch_ended(wm_op_t *op, wm_error_t *err)
{
    switch (atomic_load(status_of(op))) {
    case WM_MAIL_TAKEN:
        return 1;
    case WM_MAIL_LATE:
        op->fetching = false;
        op->late = true;
        op->pieces.next = 0;
        return 0;
    case WM_MAIL_FAILED:
        *err = op->error;
        return err->code;
    default:
        return look_for_errors(op, err);
    }
}

static int
pull_box(wm_op_t *op, wm_error_t *err)
{
    if (op->fetching) {
        int code = fetch_ended(op, err);
        op->idle = code > 0;
        return code;
    }
    bool ready = wm_word_reached(&op->slot->ready, op->pieces.ready_base + 1);
    return ready || may_wait_in_kernel(op) ? fetch(op, err) : 0;
}

// Pieces take turns on two streams, so that one is on its way while the
// other's words are written; the last is on op->stream, behind all others.
static int
stream_of_piece(wm_op_t *op, uint32_t at, CUstream *stream, CUstream *other,
                wm_error_t *err)
{
    int code = 0;
    *stream = op->stream;
    *other = NULL;
    if (op->pieces.pieces == 1)
        return 0;
    if (op->side == NULL) {
        code = wm_stream_acquire(op->device, &op->side, err);
        if (code == 0)
            code = wm_stream_follow(op->device, op->side, op->device,
                                    op->stream, err);
    }
    bool aside = (op->pieces.pieces - 1 - at) % 2 == 1;
    *stream = aside ? op->side : op->stream;
    *other = aside ? op->stream : op->side;
    return code;
}

static int
copy_piece(wm_op_t *op, uint32_t at, CUstream stream, wm_error_t *err)
{
    const wm_pieces_t *pieces = &op->pieces;
    if (wm_unpack_is_direct(op))
        return wm_unpack_enqueue(op, pieces->remote, op->device, stream, err);
    return wm_memory_copy(op->device,
                          op->buffer.data + piece_start(pieces, at),
                          pieces->remote + at % pieces->ring * pieces->piece,
                          piece_length(op, at), stream, err);
}

static int
submit_piece(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    uint32_t at = pieces->next++;
    bool last = at + 1 == pieces->pieces;
    CUstream stream, other;
    int code = wm_op_open_stream(op, err);
    op->signals = last && !op->blocking;
    if (code == 0 && (!last || op->signals))
        code = wm_node_register(op->peer, false, op->device, err);
    op->idle = false;
    if (code == 0)
        code = stream_of_piece(op, at, &stream, &other, err);
    if (code == 0)
        code = copy_piece(op, at, stream, err);
    // The words tell of all pieces up to one.
    if (code == 0 && other != NULL)
        code = wm_stream_follow(op->device, stream, op->device, other, err);
    // What came packed goes to its places behind the last one.
    if (code == 0 && last && !wm_unpack_is_direct(op))
        code = wm_unpack_enqueue(op, op->buffer.data, op->device, stream, err);
    if (code == 0 && (!last || op->signals))
        code = wm_slot_enqueue_taken(op->slot, op->device, stream,
                                     pieces->taken_base + at + 1, err);
    return code;
}

// Short copies that are ready together share a kernel: an engine and a stream
// of its own take each of them longer than its bytes do.
static bool
may_share(const wm_op_t *op)
{
    return !op->blocking && !op->alone && op->user_device < 0
           && op->buffer.pattern == NULL && op->pieces.pieces == 1
           && op->pieces.next == 0 && op->header.nbytes <= WM_MAIL_BYTES
           && op->transport->direct && wm_buffer_on_device(&op->buffer)
           && op->buffer.memory.device == op->device
           && (!op->peer->self || op->header.device == op->device)
           && (op->after[0].event != NULL
               || op->buffer.producer.kind == WM_PRODUCER_NONE);
}

static void
pull_launched(wm_op_t *op, const wm_error_t *failure)
{
    if (failure != NULL)
        tell_failure(op, failure);
}

// At the next step.
static void
pull_alone(wm_op_t *op)
{
    op->batched = false;
    op->alone = true;
    op->pieces.next = 0;
}

static int
share(wm_op_t *op, wm_error_t *err)
{
    int code = wm_pull_prepare(op->device, err);
    if (code == 0)
        code = wm_node_register(op->peer, false, op->device, err);
    if (code < 0)
        return code;
    atomic_store(status_of(op), 0);
    op->batched = op->signals = true;
    op->idle = false;
    op->pieces.next = 1;
    wm_batch_add_pull(&(wm_pull_t){.dst = op->buffer.data,
                                   .src = op->pieces.remote,
                                   .nbytes = op->header.nbytes,
                                   .taken = (uint32_t *)&op->slot->taken,
                                   .taken_value = op->pieces.taken_base + 1},
                      op, pull_launched, pull_alone);
    return 0;
}

// Whether all that was submitted has ended.
static int
pull_ended(wm_op_t *op, bool *ended, wm_error_t *err)
{
    if (op->signals) {
        *ended = wm_word_reached(&op->slot->taken,
                                 op->pieces.taken_base + op->pieces.pieces);
        return *ended ? 0 : look_for_errors(op, err);
    }
    if (!op->blocking || op->header.nbytes > SYNC_BYTES)
        return wm_stream_spin(op->device, op->stream, 2, ended, err);
    // A small copy ends within microseconds, and a query alone takes one: a
    // caller that waits does so in the driver, without the lock.
    *ended = atomic_load(&op->synchronized);
    if (!*ended)
        atomic_store(&op->news, 1);
    else if (op->sync_code < 0)
        *err = op->error;
    return *ended ? op->sync_code : 0;
}

int
wm_pieces_pull(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    int code;
    bool ended;
    if (pieces->on_host)
        return pull_on_host(op);
    if (op->on_stream)
        return pull_on_stream_ended(op, err);
    // A kernel reaches what its own device has mapped, a copy whatever is.
    if (op->user_device >= 0 && pieces->pieces == 1 && op->transport->direct
        && wm_unpack_on_stream(op)
        && (!wm_pieces_are_boxed(op) || op->user_device == op->device))
        return is_posted(op) ? pull_on_stream(op, err) : 0;
    if (wm_pieces_are_boxed(op))
        return pull_box(op, err);
    if (op->batched && atomic_load(status_of(op)) == WM_MAIL_FAILED) {
        *err = op->error;
        return err->code;
    }
    if (may_share(op)
        && wm_word_reached(&op->slot->ready, pieces->ready_base + 1))
        return share(op, err);
    while (pieces->next < pieces->pieces
           && wm_word_reached(&op->slot->ready,
                              pieces->ready_base + pieces->next + 1))
        if ((code = submit_piece(op, err)) < 0)
            return code;
    if (pieces->next < pieces->pieces) // what can be done for who waits
        return op->blocking ? wm_op_open_stream(op, err) : 0;
    if ((code = pull_ended(op, &ended, err)) < 0 || !ended)
        return code;
    op->idle = true;
    op->peer->copied = false;
    if (!op->signals) // else the slot may serve another message by now
        wm_slot_set_taken(op->slot, pieces->taken_base + pieces->pieces);
    return 1;
}

int
wm_pieces_take_back(wm_op_t *op, char *into, uint32_t ready, wm_error_t *err)
{
    wm_mail_t mail = {
        .box = wm_mailbox_pointer(op->box),
        .user = into,
        .nbytes = op->header.nbytes,
        .flag = op->header.flag,
        .word = &op->slot->ready,
        .value = ready,
    };
    return wm_mail_launch(op->device, NULL, 0, &mail, 1, WM_MAIL_FOR_EVER,
                          op->stream, err);
}

// A piece into the ring or the lane, then `ready`.
static int
feed_piece(wm_op_t *op, uint32_t at, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    char *into = pieces->remote + at % pieces->ring * pieces->piece;
    uint32_t ready = pieces->ready_base + at + 1;
    if (op->box != NULL)
        return wm_pieces_take_back(op, into, ready, err);
    int code = wm_memory_copy(op->device, into,
                              op->buffer.data + piece_start(pieces, at),
                              piece_length(op, at), op->stream, err);
    return code < 0 ? code
                    : wm_slot_enqueue_ready(op->slot, op->device, op->stream,
                                            ready, err);
}

int
wm_pieces_feed(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    while (pieces->next < pieces->pieces
           && (pieces->next < pieces->ring
               || wm_word_reached(&op->slot->taken, pieces->taken_base
                                                        + pieces->next + 1
                                                        - pieces->ring))) {
        int code = wm_op_open_stream(op, err);
        if (code == 0)
            code = feed_piece(op, pieces->next, err);
        if (code < 0)
            return code;
        if (++pieces->next == 1)
            wm_offer_posted(op);
    }
    return 0;
}
