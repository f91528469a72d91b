// SPDX-License-Identifier: BSD-3-Clause
// The sender's end. Host memory rides the header or follows on the data
// communicator; device memory is offered to receivers that share this host's
// segments, and staged through the data communicator to others.
#include <stdio.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/engine/stats.h"
#include "comm/message/buffered.h"
#include "comm/message/p2p.h"
#include "comm/message/pack.h"
#include "comm/way/batch.h"
#include "comm/way/eager.h"
#include "comm/way/inline.h"
#include "comm/way/offer.h"
#include "comm/way/payload.h"
#include "comm/way/pieces.h"
#include "comm/way/push.h"
#include "comm/way/staging.h"
#include "comm/way/transport.h"
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
send_header(wm_end_t *end, int length, wm_error_t *err)
{
    int code = wm_mpi_check(MPI_Isend(end->packet, length, MPI_BYTE, end->rank,
                                      end->tag, end->op.comm->match,
                                      &end->matching),
                            "MPI_Isend", err);
    if (code < 0 || end->header.token == 0)
        return code;
    wm_posted_leave(end->op.comm, &end->matching);
    return wm_mpi_check(MPI_Issend(NULL, 0, MPI_BYTE, end->rank,
                                   (int)(end->header.token - 1),
                                   end->op.comm->data, &end->matching),
                        "MPI_Issend", err);
}

// A CUDA error before anything was sent: the receiver, who may be waiting, is
// told instead of the message.
static void
send_failure(wm_end_t *end, const wm_error_t *err)
{
    wm_error_t ignored;
    end->header.magic = WM_HEADER_MAGIC;
    end->header.kind = WM_MESSAGE_EAGER;
    end->header.failed = 1;
    if (end->synchronous && end->header.token == 0)
        end->header.token =
            1 + wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
    snprintf(end->header.text, sizeof end->header.text, "%.63s", err->text);
    if (end->packet == NULL && wm_end_packet(end, false, &ignored) < 0)
        return;
    end->header.order = wm_comm_order(end->op.comm, end->rank);
    memcpy(end->packet, &end->header, sizeof end->header);
    if (send_header(end, (int)sizeof end->header, &ignored) == 0)
        end->state = SEND_UNDER_WAY;
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
is_on_its_way(const wm_end_t *end)
{
    const wm_pieces_t *pieces = &end->pieces;
    return end->state == SEND_OFFERED && pieces->pieces == 1
           && wm_word_reached(&end->slot->posted, pieces->ready_base + 1)
           && (wm_word_reached(&end->slot->ready, pieces->ready_base + 1)
               || wm_event_look_for_errors(end->access.device, NULL) == 0);
}

static void
fail(wm_end_t *end, const wm_error_t *err)
{
    wm_op_fail(&end->op, err);
    wm_batch_flush(); // its kernel may not be launched yet
    // What our stream was given must not touch ring or words any more. The
    // user may have destroyed his by now: then slot and mailbox are given up.
    if (end->access.opened
        && !(wm_end_posts(end) && atomic_load(&end->op.done)))
        (void)!wm_stream_synchronize(end->access.device, end->access.stream,
                                     NULL);
    bool comes = end->slot != NULL && is_on_its_way(end);
    if (end->header.kind == WM_MESSAGE_DATA)
        wm_payload_abandon(end);
    else if (end->slot != NULL && !comes)
        wm_slot_fail(end->slot, end->op.error.text);
    end->state = SEND_FAILED;
    // The receiver may be reading the buffer until it has taken all.
    if (!comes || wm_offer_hands_off(end) || end->packed != NULL)
        wm_op_complete(&end->op);
}

// The user's stream has been given all that reads the buffer: what comes next
// on it may change it.
static int
end_for_stream(wm_end_t *end, wm_error_t *err)
{
    int code = 0;
    if (end->buffer.order != NULL)
        code = wm_order_after_read(end->buffer.order, end->access.user_device,
                                   end->access.user_stream, err);
    if (code == 0)
        wm_op_complete(&end->op);
    return code;
}

// A batch tells how launching the kernel went.
static void
posted(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL) {
        end->pieces.next = 0;
        fail(end, failure);
        return;
    }
    wm_offer_posted(end);
    if (wm_end_posts(end) && end_for_stream(end, &err) < 0)
        fail(end, &err);
}

// A kernel writes the message into its mailbox.
static int
post(wm_end_t *end, wm_error_t *err)
{
    int code = wm_end_open_stream(end, err);
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

static void
announce(wm_end_t *end)
{
    wm_error_t err;
    if (wm_offer_announce_noted(end, &err) < 0)
        fail(end, &err);
}

// Puts the header on its way. Where all slots are taken the payload goes the
// way it goes to other hosts: a send never waits for another to begin.
static int
try_start(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    bool device = wm_buffer_on_device(&end->buffer);
    size_t nbytes = end->buffer.nbytes;
    size_t inlined = 0;
    int code = 0;
    header->magic = WM_HEADER_MAGIC;
    header->nbytes = nbytes;
    header->pickled = end->buffer.pickled;
    header->element = nbytes > 0 ? end->buffer.element : 0;
    end->carried = device && wm_transport_is_carried(end->peer);
    if (end->synchronous)
        header->token = 1 + wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
    if (nbytes == 0 || (!device && nbytes <= WM_EAGER_BYTES)) {
        header->kind = WM_MESSAGE_EAGER;
        inlined = nbytes;
    }
    else if (device && !end->carried && end->peer->segment != NULL
             && (end->slot_index = wm_slot_acquire()) >= 0) {
        end->slot = &wm_node_self()->segment->slots[end->slot_index];
        code = wm_offer_prepare(end, err);
    }
    else {
        header->kind = WM_MESSAGE_DATA;
        if ((code = wm_pack_reserve(end, err)) < 0)
            return code;
        if (device && end->packed == NULL)
            wm_access_take_note(&end->access);
        header->seq = wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
        header->chunk = wm_payload_chunk(end);
    }
    if (code < 0)
        return code;
    if ((code = wm_end_packet(end, false, err)) < 0)
        return code;
    size_t length = wm_header_length(header);
    header->order = wm_comm_order(end->op.comm, end->rank);
    memcpy(end->packet, header, length);
    if (inlined > 0)
        memcpy(end->packet + length, end->buffer.data, inlined);
    code = send_header(end, (int)(length + inlined), err);
    if (code < 0)
        return code;
    end->state = header->kind == WM_MESSAGE_OFFER ? SEND_OFFERED
                                                  : SEND_UNDER_WAY;
    // Launching a copy, or asking whether a stream is idle, takes longer than
    // the header does: both at once.
    wm_error_t late;
    code = wm_pack_enqueue(end, &late);
    if (code == 0 && end->state == SEND_OFFERED) {
        if (end->box != NULL)
            code = post(end, &late);
        else if (end->handoff != NULL)
            code = wm_pieces_feed(end, &late);
        else if (wm_offer_waits_to_announce(end))
            wm_batch_add_announcement(end, announce);
        else
            code = wm_offer_announce(end, &late);
    }
    if (code < 0)
        fail(end, &late);
    return 0;
}

static int
start(wm_end_t *end, wm_error_t *err)
{
    int code = try_start(end, err);
    if (!wm_send_tells(code))
        return code;
    wm_op_fail(&end->op, err);
    if (end->access.opened)
        (void)!wm_stream_synchronize(end->access.device, end->access.stream,
                                     NULL);
    wm_end_drop(end);
    end->slot = NULL;
    send_failure(end, err);
    wm_op_complete(&end->op);
    return end->state == SEND_UNDER_WAY ? 0 : code;
}

// A stream of the user's sends: it goes on when the receiver's has taken.
static int
follow_receiver(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    int code = wm_node_register(wm_node_self(), false, device, err);
    if (code == 0)
        code = wm_word_wait(device, end->access.user_stream, &end->slot->taken,
                            end->pieces.taken_base + 1, err);
    return code < 0 ? code : end_for_stream(end, err);
}

// 1 when the receiver has taken everything and no word of ours is still to
// come, 0 when not yet.
static int
step_offer(wm_end_t *end, wm_error_t *err)
{
    wm_pieces_t *pieces = &end->pieces;
    uint32_t answer = atomic_load(&end->slot->answer);
    int code = 0;
    if (end->peer->dead || answer == WM_ANSWER_ERROR)
        code = wm_failure_look(end->op.comm, end->rank, err);
    if (code < 0)
        return code;
    if (answer == WM_ANSWER_ERROR)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the receiver, rank %d, failed: %.120s", end->rank,
                            end->slot->error);
    if (end->state == SEND_OFFERED) {
        wm_eager_step(end);
        if ((code = wm_push_serve(end, err)) != 0)
            end->state = SEND_PUSHING;
        if (code < 0)
            return code;
    }
    bool stages = end->state == SEND_STAGING || answer == WM_ANSWER_HOST;
    if (end->state == SEND_OFFERED && stages) {
        if ((code = wm_staging_begin(end, err)) < 0)
            return code;
        if (code == WM_STAGING_BY_MPI) {
            end->state = SEND_UNDER_WAY;
            return 0;
        }
        if (code == WM_STAGING_BEGUN)
            end->state = SEND_STAGING;
        code = 0;
    }
    if (end->state == SEND_OFFERED
        && atomic_load(&end->slot->submitted) == pieces->taken_base + 1
        && end->access.user_device >= 0 && !atomic_load(&end->op.done)
        && pieces->pieces == 1 && (code = follow_receiver(end, err)) < 0)
        return code;
    if (end->state == SEND_STAGING || (!stages && wm_offer_hands_off(end)))
        code = wm_pieces_feed(end, err);
    if (code < 0)
        return code;
    bool ready = wm_word_reached(&end->slot->ready,
                                 pieces->ready_base + pieces->next);
    if (ready
        && wm_word_reached(&end->slot->taken,
                           pieces->taken_base + pieces->pieces)) {
        wm_push_note(end, end->state == SEND_PUSHING);
        return 1;
    }
    code = 0;
    if (++end->looks % LOOKS == 0 && (!ready || end->state == SEND_PUSHING))
        code = wm_event_look_for_errors(end->access.device, err);
    if (code == 0 && end->looks % LOOKS_FOR_PEER == 0)
        code = wm_failure_look(end->op.comm, end->rank, err);
    return code;
}

// Whether nobody will say another word of the message: the receiver is dead,
// or its communicator was revoked before it took the offer. The slot serves no
// other, as somebody may look at it yet.
static bool
is_given_up(wm_end_t *end)
{
    bool given_up = end->peer->dead;
    if (!given_up) {
        wm_slot_fail(end->slot, end->op.error.text);
        given_up = wm_slot_take_back(end->slot);
    }
    if (end->peer->dead) // our user's stream may wait for it
        wm_slot_take_for_receiver(end->slot,
                                  end->pieces.taken_base + end->pieces.pieces);
    if (given_up)
        end->slot_index = -1;
    return given_up;
}

// Whether a send that failed can go: the receiver has heard of it, or wants
// nothing more, and MPI reads our memory no more.
static bool
heard_of_failure(wm_end_t *end)
{
    int flag = 1;
    for (int i = 0; i < 2 && flag; ++i)
        if (end->flying[i] != MPI_REQUEST_NULL
            && MPI_Test(&end->flying[i], &flag, MPI_STATUS_IGNORE)
                   != MPI_SUCCESS)
            flag = 1;
    if (end->slot == NULL)
        return flag;
    if (++end->looks % LOOKS_FOR_PEER == 0
        && wm_failure_look(end->op.comm, end->rank, NULL) < 0
        && is_given_up(end))
        return true;
    uint32_t answer = atomic_load(&end->slot->answer);
    if (wm_staging_is_by_mpi(end))
        return flag
               && (answer == WM_ANSWER_ERROR
                   || wm_word_reached(&end->slot->taken,
                                      end->pieces.taken_base + 1));
    bool lost = end->looks % LOOKS == 0
                && !wm_word_reached(&end->slot->ready,
                                    end->pieces.ready_base + end->pieces.next)
                && wm_event_look_for_errors(end->access.device, NULL) < 0;
    if ((answer == WM_ANSWER_HOST || lost) && !atomic_load(&end->slot->failed))
        wm_slot_fail(
            end->slot,
            end->op.error.text); // it waits for what will not come any more
    return answer == WM_ANSWER_ERROR
           || wm_word_reached(&end->slot->taken,
                              end->pieces.taken_base + end->pieces.pieces);
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    wm_end_t *end = (wm_end_t *)op;
    int flag = 1, code = 0;
    if (end->batched) // it is not announced yet
        return false;
    if (end->matching != MPI_REQUEST_NULL)
        code = wm_mpi_check(MPI_Test(&end->matching, &flag, MPI_STATUS_IGNORE),
                            "MPI_Test", &err);
    if (code == 0 && end->state == SEND_UNDER_WAY)
        code = wm_staging_is_by_mpi(end) ? wm_staging_send(end, &err)
               : end->header.kind == WM_MESSAGE_DATA
                   ? wm_payload_send(end, &err)
                   : 1;
    else if (code == 0 && end->state != SEND_FAILED)
        code = step_offer(end, &err);
    if (end->state == SEND_FAILED)
        code = heard_of_failure(end);
    if (code < 0) {
        bool heard = end->slot != NULL && !wm_staging_is_by_mpi(end)
                     && atomic_load(&end->slot->answer) == WM_ANSWER_ERROR;
        fail(end, &err);
        if (heard) // which our user's stream may wait for
            wm_slot_take_for_receiver(end->slot, end->pieces.taken_base
                                                     + end->pieces.pieces);
        if (!heard || !flag)
            return false;
        wm_end_drop(end);
        return true;
    }
    if (code == 0 || !flag)
        return false;
    wm_end_drop(end);
    return true;
}

// What our streams wait for, it will not say any more.
static void
peer_died(wm_op_t *op, const wm_peer_t *peer)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->peer == peer && end->slot != NULL)
        wm_slot_take_for_receiver(end->slot,
                                  end->pieces.taken_base + end->pieces.pieces);
}

static const wm_op_kind_t kind = {
    .step = step,
    .asks = wm_end_asks,
    .about = wm_end_about,
    .buffer = wm_end_buffer,
    .meet = wm_end_meet,
    .peer_died = peer_died,
    .free = wm_end_free,
};

bool
wm_end_is_send(const wm_op_t *op)
{
    return op->kind == &kind;
}

// The engine's reference is its own; on failure it has none.
static int
begin_sending(wm_end_t *end, const wm_envelope_t *envelope, wm_error_t *err)
{
    int code = 0;
    int settled = wm_settle_producer(&end->buffer, &end->access.producer,
                                     envelope, false, err);
    if (settled == 0)
        settled = wm_pack_prepare(end, err);
    if (settled == WM_ERR_STATE || settled == WM_ERR_MPI
        || settled == WM_ERR_VALUE) { // the caller's mistake: nothing is sent
        wm_engine_lock();
        wm_end_drop(end);
        wm_engine_unlock();
        return settled;
    }
    if (settled < 0)
        wm_op_fail(&end->op, err);
    wm_stat_add(WM_STAT_sent_messages, 1);
    wm_stat_add(WM_STAT_sent_bytes, (int64_t)end->buffer.nbytes);
    wm_engine_lock();
    wm_op_retain(&end->op);
    wm_engine_add_lock_held(&end->op);
    if (settled == 0)
        code = start(end, err);
    else {
        send_failure(end, &end->op.error);
        wm_op_complete(&end->op);
        code = end->state == SEND_UNDER_WAY ? 0 : settled;
    }
    if (code < 0)
        wm_end_drop(end);
    // MPI has most short ones on their way by now: nobody waits. A payload in
    // host memory goes behind its header at once.
    bool short_one = end->header.kind == WM_MESSAGE_EAGER && end->blocking;
    bool on_host = end->header.kind == WM_MESSAGE_DATA
                   && !wm_buffer_on_device(&end->buffer);
    bool ended = code < 0
                 || (end->state == SEND_UNDER_WAY && (short_one || on_host)
                     && step(&end->op));
    if (ended)
        wm_engine_remove_lock_held(&end->op);
    if (!end->blocking)
        wm_engine_begun_lock_held();
    wm_engine_unlock();
    if (ended)
        wm_op_release(&end->op);
    return code;
}

static int
begin(wm_comm_t *comm, wm_buffer_t *buffer, const wm_envelope_t *envelope,
      wm_op_t **result, wm_error_t *err)
{
    wm_end_t *end;
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
    code = wm_end_new(&kind, comm, buffer, envelope, false, &end, err);
    if (code < 0)
        return code;
    *result = &end->op;
    if (atomic_load(&end->op.done))
        return 0;
    code = begin_sending(end, envelope, err);
    if (code < 0) {
        *result = NULL;
        wm_op_release(&end->op);
    }
    return code;
}

int
wm_send_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **result, wm_error_t *err)
{
    return wm_end_begin_in_device(begin, comm, buffer, envelope, result, err);
}

void
wm_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope,
                const char *text)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_error_t err;
    wm_end_t *end;
    if (wm_end_new(&kind, comm, &none, envelope, false, &end, &err) < 0)
        return;
    if (!atomic_load(&end->op.done)) {
        wm_error_set(&err, WM_ERR_CUDA, 0, "%s", text);
        wm_engine_lock();
        send_failure(end, &err);
        wm_op_complete(&end->op);
        if (end->state == SEND_UNDER_WAY) {
            wm_op_retain(&end->op);
            wm_engine_add_lock_held(&end->op);
        }
        wm_engine_unlock();
        wm_engine_notify();
    }
    wm_op_release(&end->op);
}

void
wm_send_flush(void)
{
    wm_engine_lock();
    wm_batch_flush();
    wm_engine_unlock();
}
