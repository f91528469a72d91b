// SPDX-License-Identifier: BSD-3-Clause
// The sender's end. Host memory rides the header or follows on the data
// communicator; device memory is offered to receivers that share this host's
// segments, and staged through the data communicator to others.
#include <stdio.h>
#include <string.h>

#include "comm/batch.h"
#include "comm/buffered.h"
#include "comm/eager.h"
#include "comm/failure.h"
#include "comm/inline.h"
#include "comm/offer.h"
#include "comm/p2p.h"
#include "comm/pack.h"
#include "comm/payload.h"
#include "comm/pieces.h"
#include "comm/progress.h"
#include "comm/push.h"
#include "comm/staging.h"
#include "comm/stats.h"
#include "comm/transport.h"
#include "cuda/event.h"
#include "cuda/word.h"

#define LOOKS 256 // at words, before the driver is asked for errors
#define LOOKS_FOR_PEER 16

enum {
    SEND_NEW,
    SEND_UNDER_WAY,
    SEND_OFFERED,
    SEND_PUSHING, // into the receiver's memory
    SEND_STAGING,
    SEND_FAILED,
};

// A probe takes the header as well, so of a synchronous send it tells nothing:
// the empty message behind it does, which only a receive takes. What the
// header's own request would tell is known by then.
static int
send_header(wm_op_t *op, int length, wm_error_t *err)
{
    int code = wm_mpi_check(MPI_Isend(op->packet, length, MPI_BYTE, op->rank,
                                      op->tag, op->comm->match, &op->parts[0]),
                            "MPI_Isend", err);
    if (code < 0 || op->header.token == 0)
        return code;
    wm_op_leave(op->comm, &op->parts[0]);
    return wm_mpi_check(MPI_Issend(NULL, 0, MPI_BYTE, op->rank,
                                   (int)(op->header.token - 1), op->comm->data,
                                   &op->parts[0]),
                        "MPI_Issend", err);
}

// A CUDA error before anything was sent: the receiver, who may be waiting, is
// told instead of the message.
static void
send_failure(wm_op_t *op, const wm_error_t *err)
{
    wm_error_t ignored;
    op->header.magic = WM_HEADER_MAGIC;
    op->header.kind = WM_MESSAGE_EAGER;
    op->header.failed = 1;
    if (op->synchronous && op->header.token == 0)
        op->header.token = 1 + wm_comm_draw_lock_held(op->comm, op->rank, 1);
    snprintf(op->header.text, sizeof op->header.text, "%.63s", err->text);
    if (op->packet == NULL && wm_op_packet(op, false, &ignored) < 0)
        return;
    op->header.order = wm_comm_order(op->comm, op->rank);
    memcpy(op->packet, &op->header, sizeof op->header);
    if (send_header(op, (int)sizeof op->header, &ignored) == 0)
        op->state = SEND_UNDER_WAY;
}

bool
wm_send_tells(int code)
{
    return code == WM_ERR_CUDA || code == WM_ERR_MEMORY
           || code == WM_ERR_SYSTEM;
}

// Whether the message comes in spite of the failure: it was posted, and the
// receiver's stream may wait for it already.
static bool
is_on_its_way(const wm_op_t *op)
{
    const wm_pieces_t *pieces = &op->pieces;
    return op->state == SEND_OFFERED && pieces->pieces == 1
           && wm_word_reached(&op->slot->posted, pieces->ready_base + 1)
           && (wm_word_reached(&op->slot->ready, pieces->ready_base + 1)
               || wm_event_look_for_errors(op->device, NULL) == 0);
}

static void
fail(wm_op_t *op, const wm_error_t *err)
{
    wm_op_fail(op, err);
    wm_batch_flush(); // its kernel may not be launched yet
    // What our stream was given must not touch ring or words any more. The
    // user may have destroyed his by now: then slot and mailbox are given up.
    if (op->opened && !(wm_op_posts(op) && atomic_load(&op->done)))
        (void)!wm_stream_synchronize(op->device, op->stream, NULL);
    bool comes = op->slot != NULL && is_on_its_way(op);
    if (op->header.kind == WM_MESSAGE_DATA)
        wm_payload_abandon(op);
    else if (op->slot != NULL && !comes)
        wm_slot_fail(op->slot, op->error.text);
    op->state = SEND_FAILED;
    // The receiver may be reading the buffer until it has taken all.
    if (!comes || wm_offer_hands_off(op) || op->packed != NULL)
        wm_op_complete(op);
}

// The user's stream has been given all that reads the buffer: what comes next
// on it may change it.
static int
end_for_stream(wm_op_t *op, wm_error_t *err)
{
    int code = 0;
    if (op->buffer.order != NULL)
        code = wm_order_after_read(op->buffer.order, op->user_device,
                                   op->user_stream, err);
    if (code == 0)
        wm_op_complete(op);
    return code;
}

// A batch tells how launching the kernel went.
static void
posted(wm_op_t *op, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL) {
        op->pieces.next = 0;
        fail(op, failure);
        return;
    }
    wm_offer_posted(op);
    if (wm_op_posts(op) && end_for_stream(op, &err) < 0)
        fail(op, &err);
}

// A kernel writes the message into its mailbox.
static int
post(wm_op_t *op, wm_error_t *err)
{
    int code = wm_op_open_stream(op, err);
    if (code < 0)
        return code;
    wm_mail_t mail = {
        .box = op->pieces.remote,
        .user = op->buffer.data,
        .strided = wm_pack_by_mail(op),
        .nbytes = op->header.nbytes,
        .flag = op->header.flag,
        .word = &op->slot->ready,
        .value = op->pieces.ready_base + 1,
    };
    op->pieces.next = 1;
    wm_batch_add(&(wm_batch_t){.device = op->device,
                               .stream = op->stream,
                               .posts = true},
                 &mail, op, posted);
    if (op->paired && op->user_device < 0)
        wm_batch_hold();
    else if (!op->more)
        wm_batch_flush();
    return 0;
}

static void
announce(wm_op_t *op)
{
    wm_error_t err;
    if (wm_offer_announce_noted(op, &err) < 0)
        fail(op, &err);
}

// Puts the header on its way. Where all slots are taken the payload goes the
// way it goes to other hosts: a send never waits for another to begin.
static int
try_start(wm_op_t *op, wm_error_t *err)
{
    wm_header_t *header = &op->header;
    bool device = wm_buffer_on_device(&op->buffer);
    size_t nbytes = op->buffer.nbytes;
    size_t inlined = 0;
    int code = 0;
    header->magic = WM_HEADER_MAGIC;
    header->nbytes = nbytes;
    header->pickled = op->buffer.pickled;
    header->element = nbytes > 0 ? op->buffer.element : 0;
    op->carried = device && wm_transport_is_carried(op->peer);
    if (op->synchronous)
        header->token = 1 + wm_comm_draw_lock_held(op->comm, op->rank, 1);
    if (nbytes == 0 || (!device && nbytes <= WM_EAGER_BYTES)) {
        header->kind = WM_MESSAGE_EAGER;
        inlined = nbytes;
    }
    else if (device && !op->carried && op->peer->segment != NULL
             && (op->slot_index = wm_slot_acquire()) >= 0) {
        op->slot = &wm_node_self()->segment->slots[op->slot_index];
        code = wm_offer_prepare(op, err);
    }
    else {
        header->kind = WM_MESSAGE_DATA;
        if ((code = wm_pack_reserve(op, err)) < 0)
            return code;
        if (device && op->packed == NULL)
            wm_op_take_note(op);
        header->seq = wm_comm_draw_lock_held(op->comm, op->rank, 1);
        header->chunk = wm_payload_chunk(op);
    }
    if (code < 0)
        return code;
    if ((code = wm_op_packet(op, false, err)) < 0)
        return code;
    size_t length = wm_header_length(header);
    header->order = wm_comm_order(op->comm, op->rank);
    memcpy(op->packet, header, length);
    if (inlined > 0)
        memcpy(op->packet + length, op->buffer.data, inlined);
    code = send_header(op, (int)(length + inlined), err);
    if (code < 0)
        return code;
    op->state = header->kind == WM_MESSAGE_OFFER ? SEND_OFFERED
                                                 : SEND_UNDER_WAY;
    // Launching a copy, or asking whether a stream is idle, takes longer than
    // the header does: both at once.
    wm_error_t late;
    code = wm_pack_enqueue(op, &late);
    if (code == 0 && op->state == SEND_OFFERED) {
        if (op->box != NULL)
            code = post(op, &late);
        else if (op->handoff != NULL)
            code = wm_pieces_feed(op, &late);
        else if (wm_offer_waits_to_announce(op))
            wm_batch_add_announcement(op, announce);
        else
            code = wm_offer_announce(op, &late);
    }
    if (code < 0)
        fail(op, &late);
    return 0;
}

static int
start(wm_op_t *op, wm_error_t *err)
{
    int code = try_start(op, err);
    if (!wm_send_tells(code))
        return code;
    wm_op_fail(op, err);
    if (op->opened)
        (void)!wm_stream_synchronize(op->device, op->stream, NULL);
    wm_op_drop_resources(op);
    op->slot = NULL;
    send_failure(op, err);
    wm_op_complete(op);
    return op->state == SEND_UNDER_WAY ? 0 : code;
}

// A stream of the user's sends: it goes on when the receiver's has taken.
static int
follow_receiver(wm_op_t *op, wm_error_t *err)
{
    int device = op->user_device;
    int code = wm_node_register(wm_node_self(), false, device, err);
    if (code == 0)
        code = wm_word_wait(device, op->user_stream, &op->slot->taken,
                            op->pieces.taken_base + 1, err);
    return code < 0 ? code : end_for_stream(op, err);
}

// 1 when the receiver has taken everything and no word of ours is still to
// come, 0 when not yet.
static int
step_offer(wm_op_t *op, wm_error_t *err)
{
    wm_pieces_t *pieces = &op->pieces;
    uint32_t answer = atomic_load(&op->slot->answer);
    int code = 0;
    if (op->peer->dead || answer == WM_ANSWER_ERROR)
        code = wm_failure_look(op->comm, op->rank, err);
    if (code < 0)
        return code;
    if (answer == WM_ANSWER_ERROR)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the receiver, rank %d, failed: %.120s", op->rank,
                            op->slot->error);
    if (op->state == SEND_OFFERED) {
        wm_eager_step(op);
        if ((code = wm_push_serve(op, err)) != 0)
            op->state = SEND_PUSHING;
        if (code < 0)
            return code;
    }
    bool stages = op->state == SEND_STAGING || answer == WM_ANSWER_HOST;
    if (op->state == SEND_OFFERED && stages) {
        if ((code = wm_staging_begin(op, err)) < 0)
            return code;
        if (code == WM_STAGING_BY_MPI) {
            op->state = SEND_UNDER_WAY;
            return 0;
        }
        if (code == WM_STAGING_BEGUN)
            op->state = SEND_STAGING;
        code = 0;
    }
    if (op->state == SEND_OFFERED
        && atomic_load(&op->slot->submitted) == pieces->taken_base + 1
        && op->user_device >= 0 && !atomic_load(&op->done)
        && pieces->pieces == 1 && (code = follow_receiver(op, err)) < 0)
        return code;
    if (op->state == SEND_STAGING || (!stages && wm_offer_hands_off(op)))
        code = wm_pieces_feed(op, err);
    if (code < 0)
        return code;
    bool ready = wm_word_reached(&op->slot->ready,
                                 pieces->ready_base + pieces->next);
    if (ready
        && wm_word_reached(&op->slot->taken,
                           pieces->taken_base + pieces->pieces)) {
        wm_push_note(op, op->state == SEND_PUSHING);
        return 1;
    }
    code = 0;
    if (++op->looks % LOOKS == 0 && (!ready || op->state == SEND_PUSHING))
        code = wm_event_look_for_errors(op->device, err);
    if (code == 0 && op->looks % LOOKS_FOR_PEER == 0)
        code = wm_failure_look(op->comm, op->rank, err);
    return code;
}

// Whether nobody will say another word of the message: the receiver is dead,
// or its communicator was revoked before it took the offer. The slot serves no
// other, as somebody may look at it yet.
static bool
is_given_up(wm_op_t *op)
{
    bool given_up = op->peer->dead;
    if (!given_up) {
        wm_slot_fail(op->slot, op->error.text);
        given_up = wm_slot_take_back(op->slot);
    }
    if (op->peer->dead) // our user's stream may wait for it
        wm_slot_take_for_receiver(op->slot,
                                  op->pieces.taken_base + op->pieces.pieces);
    if (given_up)
        op->slot_index = -1;
    return given_up;
}

// Whether a send that failed can go: the receiver has heard of it, or wants
// nothing more, and MPI reads our memory no more.
static bool
heard_of_failure(wm_op_t *op)
{
    int flag = 1;
    for (int i = 1; i < 3 && flag; ++i)
        if (op->parts[i] != MPI_REQUEST_NULL
            && MPI_Test(&op->parts[i], &flag, MPI_STATUS_IGNORE)
                   != MPI_SUCCESS)
            flag = 1;
    if (op->slot == NULL)
        return flag;
    if (++op->looks % LOOKS_FOR_PEER == 0
        && wm_failure_look(op->comm, op->rank, NULL) < 0 && is_given_up(op))
        return true;
    uint32_t answer = atomic_load(&op->slot->answer);
    if (wm_staging_is_by_mpi(op))
        return flag
               && (answer == WM_ANSWER_ERROR
                   || wm_word_reached(&op->slot->taken,
                                      op->pieces.taken_base + 1));
    bool lost = op->looks % LOOKS == 0
                && !wm_word_reached(&op->slot->ready,
                                    op->pieces.ready_base + op->pieces.next)
                && wm_event_look_for_errors(op->device, NULL) < 0;
    if ((answer == WM_ANSWER_HOST || lost) && !atomic_load(&op->slot->failed))
        wm_slot_fail(
            op->slot,
            op->error.text); // it waits for what will not come any more
    return answer == WM_ANSWER_ERROR
           || wm_word_reached(&op->slot->taken,
                              op->pieces.taken_base + op->pieces.pieces);
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    int flag = 1, code = 0;
    if (op->batched) // it is not announced yet
        return false;
    if (op->parts[0] != MPI_REQUEST_NULL)
        code = wm_mpi_check(MPI_Test(&op->parts[0], &flag, MPI_STATUS_IGNORE),
                            "MPI_Test", &err);
    if (code == 0 && op->state == SEND_UNDER_WAY)
        code = wm_staging_is_by_mpi(op)             ? wm_staging_send(op, &err)
               : op->header.kind == WM_MESSAGE_DATA ? wm_payload_send(op, &err)
                                                    : 1;
    else if (code == 0 && op->state != SEND_FAILED)
        code = step_offer(op, &err);
    if (op->state == SEND_FAILED)
        code = heard_of_failure(op);
    if (code < 0) {
        bool heard = op->slot != NULL && !wm_staging_is_by_mpi(op)
                     && atomic_load(&op->slot->answer) == WM_ANSWER_ERROR;
        fail(op, &err);
        if (heard) // which our user's stream may wait for
            wm_slot_take_for_receiver(op->slot, op->pieces.taken_base
                                                    + op->pieces.pieces);
        if (!heard || !flag)
            return false;
        wm_op_drop_resources(op);
        return true;
    }
    if (code == 0 || !flag)
        return false;
    wm_op_drop_resources(op);
    return true;
}

// The engine's reference is its own; on failure it has none.
static int
begin_sending(wm_op_t *op, const wm_envelope_t *envelope, wm_error_t *err)
{
    int code = 0;
    int settled = wm_settle_producer(&op->buffer, envelope, false, err);
    if (settled == 0)
        settled = wm_pack_prepare(op, err);
    if (settled == WM_ERR_STATE || settled == WM_ERR_MPI
        || settled == WM_ERR_VALUE) { // the caller's mistake: nothing is sent
        wm_engine_lock();
        wm_op_drop_resources(op);
        wm_engine_unlock();
        return settled;
    }
    if (settled < 0)
        wm_op_fail(op, err);
    wm_stat_add(WM_STAT_sent_messages, 1);
    wm_stat_add(WM_STAT_sent_bytes, (int64_t)op->buffer.nbytes);
    op->step = step;
    wm_engine_lock();
    wm_op_retain(op);
    wm_engine_add_lock_held(op);
    if (settled == 0)
        code = start(op, err);
    else {
        send_failure(op, &op->error);
        wm_op_complete(op);
        code = op->state == SEND_UNDER_WAY ? 0 : settled;
    }
    if (code < 0)
        wm_op_drop_resources(op);
    // MPI has most short ones on their way by now: nobody waits. A payload in
    // host memory goes behind its header at once.
    bool short_one = op->header.kind == WM_MESSAGE_EAGER && op->blocking;
    bool on_host = op->header.kind == WM_MESSAGE_DATA
                   && !wm_buffer_on_device(&op->buffer);
    bool ended = code < 0
                 || (op->state == SEND_UNDER_WAY && (short_one || on_host)
                     && step(op));
    if (ended)
        wm_engine_remove_lock_held(op);
    wm_engine_begun_lock_held(op);
    wm_engine_unlock();
    if (ended)
        wm_op_release(op);
    return code;
}

static int
begin(wm_comm_t *comm, wm_buffer_t *buffer, const wm_envelope_t *envelope,
      wm_op_t **result, wm_error_t *err)
{
    wm_op_t *op;
    int code = wm_comm_raise_kept(comm, err);
    if (code < 0) {
        wm_send_failure(comm, envelope, err != NULL ? err->text : "");
        wm_buffer_release(buffer);
        return code;
    }
    if (envelope->buffered)
        return wm_buffered_begin(comm, buffer, envelope, result, err);
    if (wm_inline_fits(comm, buffer, envelope)) {
        code = wm_inline_send(comm, buffer, envelope, result, err);
        wm_buffer_release(buffer);
        return code;
    }
    code = wm_begin_op(comm, buffer, envelope, false, &op, err);
    if (code < 0)
        return code;
    *result = op;
    if (atomic_load(&op->done))
        return 0;
    code = begin_sending(op, envelope, err);
    if (code < 0) {
        *result = NULL;
        wm_op_release(op);
    }
    return code;
}

int
wm_send_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **result, wm_error_t *err)
{
    return wm_begin_in_device(begin, comm, buffer, envelope, result, err);
}

void
wm_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope,
                const char *text)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_error_t err;
    wm_op_t *op;
    if (wm_begin_op(comm, &none, envelope, false, &op, &err) < 0)
        return;
    if (!atomic_load(&op->done)) {
        wm_error_set(&err, WM_ERR_CUDA, 0, "%s", text);
        op->step = step;
        wm_engine_lock();
        send_failure(op, &err);
        wm_op_complete(op);
        if (op->state == SEND_UNDER_WAY) {
            wm_op_retain(op);
            wm_engine_add_lock_held(op);
        }
        wm_engine_unlock();
        wm_engine_notify();
    }
    wm_op_release(op);
}
