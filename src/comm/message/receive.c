// SPDX-License-Identifier: BSD-3-Clause
// The receiver's end: MPI matches the header, and the receiver, who alone
// knows both ends, decides how the payload comes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/engine/request.h"
#include "comm/engine/stats.h"
#include "comm/message/bounds.h"
#include "comm/message/p2p.h"
#include "comm/message/pack.h"
#include "comm/message/stash.h"
#include "comm/node/mapping.h"
#include "comm/way/batch.h"
#include "comm/way/eager.h"
#include "comm/way/payload.h"
#include "comm/way/pieces.h"
#include "comm/way/push.h"
#include "comm/way/transport.h"
#include "cuda/word.h"

#define LOOKS_FOR_PEER 16 // at words, before it is asked whether it lives
#define PATIENCE_US 10000

enum {
    RECEIVE_HEADER,  // not matched
    RECEIVE_PAYLOAD, // on the data communicator
    RECEIVE_COPY,    // an eager payload on its way to the device
    RECEIVE_ACCEPT,  // the transport is getting ready
    RECEIVE_PULL,
    RECEIVE_PUSHED, // the sender copies
    RECEIVE_UNPACK, // all is there, but not in its place
};

// Whether the slot is still this message's: once all pieces are taken the
// sender may have given it to another.
static bool
holds_slot(const wm_end_t *end)
{
    return end->slot != NULL
           && (end->pieces.pieces == 0
               || !wm_word_reached(&end->slot->taken,
                                   end->pieces.taken_base
                                       + end->pieces.pieces));
}

static void
answer_error(wm_end_t *end, const wm_error_t *err)
{
    if (!holds_slot(end))
        return;
    wm_slot_answer_error(end->slot, err->text);
}

// The eager payload, or what fits of it, into the buffer; 1 when it is there.
static int
take_eager(wm_end_t *end, wm_error_t *err)
{
    size_t length = end->header.nbytes;
    const char *payload = end->packet + wm_header_length(&end->header);
    if (end->op.error.code != 0)
        return 1; // truncated, or refused
    int code = wm_unpack_reserve(end, err);
    if (code < 0)
        return code;
    if (!wm_buffer_on_device(&end->buffer)) {
        if (length > 0)
            memcpy(end->buffer.data, payload, length);
        wm_stat_add(WM_STAT_mpi_messages, 1);
        wm_stat_add(WM_STAT_mpi_bytes, (int64_t)length);
        return 1;
    }
    if (length == 0)
        return 1;
    code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_memory_copy(end->access.device, end->buffer.data, payload,
                              length, end->access.stream, err);
    wm_transport_host.count(end);
    return code;
}

static const wm_transport_t *
choose(wm_end_t *end)
{
    if (end->peer->self)
        return &wm_transport_self;
    if (end->header.stage_only == WM_STAGE_UNEXPORTABLE) {
        end->peer->ipc_refused = true;
        snprintf(end->peer->reason, sizeof end->peer->reason,
                 "CUDA IPC could not export its GPU memory");
    }
    if (end->header.stage_only)
        return &wm_transport_host;
    return wm_transport_take(end->peer, &end->buffer.memory);
}

// Tells who sends synchronously that a receive has begun.
static void
take_token(const wm_end_t *end)
{
    MPI_Request request;
    if (MPI_Irecv(NULL, 0, MPI_BYTE, end->op.result.source,
                  (int)(end->header.token - 1), end->op.comm->data, &request)
        == MPI_SUCCESS)
        wm_posted_leave(end->op.comm, &request);
}

static void
free_received(void *memory)
{
    free(memory);
}

// Host memory for a message of unknown size, now that it is known.
static int
grow(wm_end_t *end, wm_error_t *err)
{
    wm_buffer_t *buffer = &end->buffer;
    buffer->grows = false;
    buffer->nbytes = 0;
    size_t size = end->header.nbytes;
    buffer->data = size < SIZE_MAX ? malloc(size + 1) : NULL;
    if (buffer->data == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "out of host memory for a message of %zu bytes "
                            "from rank %d",
                            size, end->op.result.source);
    buffer->nbytes = size;
    buffer->owner = buffer->data;
    buffer->release = free_received;
    return 0;
}

static uint64_t
fitting_bytes(const wm_end_t *end)
{
    return end->header.nbytes < end->buffer.nbytes ? end->header.nbytes
                                                   : end->buffer.nbytes;
}

// The header has come: what now? 1 when the message has ended.
static int
match(wm_end_t *end, wm_error_t *err)
{
    wm_header_read(&end->header, end->packet);
    if (end->header.magic != WM_HEADER_MAGIC)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "what came from rank %d is no message of "
                            "warpmpi's",
                            end->op.result.source);
    end->op.result.nbytes = fitting_bytes(end);
    end->peer = end->op.comm->peers[end->op.result.source];
    int code = wm_bounds_check_header(end, err);
    if (code < 0)
        return code;
    if (end->header.token != 0)
        take_token(end);
    if (end->header.failed)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the sender, rank %d, failed: %.63s",
                            end->op.result.source, end->header.text);
    bool truncated = end->header.nbytes > end->buffer.nbytes;
    if (truncated)
        wm_error_set(&end->op.error, WM_ERR_TRUNCATE, MPI_ERR_TRUNCATE,
                     "message truncated: %llu bytes came from rank %d with "
                     "tag %d, the receive buffer holds %zu",
                     (unsigned long long)end->header.nbytes,
                     end->op.result.source, end->op.result.tag,
                     end->buffer.nbytes);
    else if (end->buffer.grows) // what cannot be had is thrown away likewise
        truncated = grow(end, &end->op.error) < 0;
    end->op.result.nbytes = fitting_bytes(end);
    truncated = wm_bounds_refuse(end, &end->op.error) || truncated;
    wm_stat_add(WM_STAT_received_messages, 1);
    wm_stat_add(WM_STAT_received_bytes, (int64_t)end->header.nbytes);
    if (end->header.kind == WM_MESSAGE_EAGER) {
        end->state = RECEIVE_COPY;
        return take_eager(end, err);
    }
    if (end->header.kind == WM_MESSAGE_DATA) {
        end->state = RECEIVE_PAYLOAD;
        bool device = wm_buffer_on_device(&end->buffer);
        end->carried = device && wm_transport_is_carried(end->peer);
        if (device && !end->carried)
            wm_transport_host.count(end);
        else
            wm_transport_mpi.count(end);
        return truncated ? 0 : wm_unpack_reserve(end, err);
    }
    if (truncated) { // the sender completes, nothing is taken
        wm_slot_set_taken(end->slot,
                          end->header.taken_base + end->header.pieces);
        return 1;
    }
    code = wm_unpack_match(end, err);
    end->transport = choose(end);
    end->state = RECEIVE_ACCEPT;
    return code;
}

// Whether the progress thread leaves it to a thread of the program's, which
// may close what stands in the way of a mapping, and comes soon as a rule.
static bool
is_left_to_program(wm_end_t *end)
{
    if (!wm_engine_is_background() || !wm_mapping_is_closing_wanted())
        return false;
    int64_t now = wm_engine_now();
    if (end->left_since == 0)
        end->left_since = now;
    return now - end->left_since < PATIENCE_US;
}

static int
accept_offer(wm_end_t *end, wm_error_t *err)
{
    if (wm_push_ask(end)) {
        end->state = RECEIVE_PUSHED;
        return 0;
    }
    int code = end->transport->accept(end, err);
    if (code < 0 && is_left_to_program(end))
        return 0;
    if (code < 0 && end->transport != &wm_transport_host) {
        end->transport = &wm_transport_host;
        code = end->transport->accept(end, err);
    }
    if (code == 0) {
        end->transport->count(end);
        end->state = end->slot != NULL ? RECEIVE_PULL : RECEIVE_PAYLOAD;
        code = wm_unpack_accept(end, err);
    }
    return code < 0 ? code : 0;
}

// A receive from anybody goes on where one has died. True when a message came
// before it could be taken back.
static bool
came_after_all(wm_end_t *end, MPI_Status *status)
{
    int cancelled = 1;
    if (end->matching == MPI_REQUEST_NULL)
        return false;
    MPI_Cancel(&end->matching);
    if (MPI_Wait(&end->matching, status) == MPI_SUCCESS)
        MPI_Test_cancelled(status, &cancelled);
    return !cancelled;
}

// Its header is the stash's, but not all there.
static bool
is_coming(const wm_end_t *end)
{
    return end->receives && end->state == RECEIVE_HEADER && !end->stashed
           && end->matching == MPI_REQUEST_NULL;
}

static int
post_lock_held(wm_end_t *end, wm_stashed_t *matched, wm_error_t *err)
{
    int code = WM_STASH_TAKEN;
    if (matched != NULL)
        wm_stash_open(end, matched);
    else if ((code = wm_stash_take(end, err)) < 0)
        return code;
    end->stashed = code == WM_STASH_TAKEN;
    if (code != WM_STASH_NONE)
        return 0;
    return wm_mpi_check(MPI_Irecv(end->packet, (int)WM_PACKET_BYTES, MPI_BYTE,
                                  end->rank, end->tag, end->op.comm->match,
                                  &end->matching),
                        "MPI_Irecv", err);
}

// Looks whether the header has come; 1 when it has, or none will.
static int
look_for_header(wm_end_t *end, wm_error_t *err)
{
    int flag = 0, code;
    MPI_Status status;
    if (end->held)
        return 0;
    if (is_coming(end) && end->withdrawn) {
        wm_stash_let_go(end);
        end->op.result.cancelled = true;
        return 1;
    }
    if (is_coming(end)) {
        code = post_lock_held(end, NULL, err); // MPI, where nothing comes
        if (code < 0 || !end->stashed)
            return code;
    }
    if (!end->stashed) {
        code = wm_mpi_check(MPI_Test(&end->matching, &flag, &status),
                            "MPI_Test", err);
        if (code < 0 && !came_after_all(end, &status)) {
            err->detail = wm_failure_of_any(err->detail);
            return code;
        }
        if (code == 0 && !flag)
            return 0;
        MPI_Test_cancelled(&status, &flag);
        end->op.result.cancelled = flag;
        end->op.result.source = status.MPI_SOURCE;
        end->op.result.tag = status.MPI_TAG;
    }
    if (end->withdrawn && !end->op.result.cancelled)
        end->op.result.cancelled = wm_stash_put(end);
    return 1;
}

// No header yet: there is time to ask whether those who used the buffer have
// ended, which takes longer than noting them, and spares the copy a wait.
// Once, and only for who is usually alone on his stream.
static void
ask_about_producer(wm_end_t *end)
{
    if (!end->blocking || end->asked || !wm_access_is_noted(&end->access))
        return;
    end->asked = true;
    (void)wm_access_ask_note(&end->access);
}

// It says so, or it is dead, as another message has found out: then `failed`
// is ours, and there is no text.
static int
sender_failed(const wm_end_t *end, wm_error_t *err)
{
    int code = end->peer->dead
                   ? wm_failure_look(end->op.comm, end->op.result.source, err)
                   : 0;
    return code < 0 ? code
                    : wm_error_set(err, WM_ERR_CUDA, 0,
                                   "the sender, rank %d, failed: %.120s",
                                   end->op.result.source, end->slot->error);
}

static int
advance(wm_end_t *end, wm_error_t *err)
{
    bool idle = false;
    int code, done = atomic_load(&end->op.done);
    switch (end->state) {
    case RECEIVE_HEADER:
        code = look_for_header(end, err);
        if (code == 0)
            ask_about_producer(end);
        if (code <= 0 || end->op.result.cancelled)
            return code;
        code = match(end, err);
        return code != 0 || end->state == RECEIVE_COPY ? code
                                                       : advance(end, err);
    case RECEIVE_COPY:
        code = wm_stream_spin(end->access.device, end->access.stream, 16,
                              &idle, err);
        end->access.idle = idle;
        return code < 0 ? code : idle;
    case RECEIVE_PAYLOAD:
        return wm_payload_receive(end, err);
    case RECEIVE_ACCEPT:
        // A user's stream takes what cannot be taken back: asked first.
        wm_eager_claim(end);
        code = atomic_load(&end->slot->failed) ? 0 : accept_offer(end, err);
        if (end->state == RECEIVE_PAYLOAD)
            return code;
        if (code < 0 || end->state != RECEIVE_PULL)
            break;
        // fall through
    case RECEIVE_PULL:
        code = wm_pieces_pull(end, err);
        if (atomic_load(&end->op.done) != done)
            return code; // told by this step: failures are the next one's
        break;
    case RECEIVE_PUSHED:
        code = wm_push_ended(end);
        if (code < 0)
            end->state = RECEIVE_ACCEPT;
        code = code > 0;
        break;
    case RECEIVE_UNPACK:
        return wm_unpack_step(end, err);
    default:
        return 1;
    }
    // What a living peer has posted comes, whoever revoked the communicator.
    if (code == 0 && end->slot != NULL && ++end->looks % LOOKS_FOR_PEER == 0
        && wm_failure_look(end->op.comm, end->op.result.source, err) < 0
        && (end->peer->dead || !end->on_stream)
        && (end->peer->dead || end->state != RECEIVE_PUSHED
            || wm_push_withdraw(end)))
        return WM_ERR_MPI;
    if (code == 0 && atomic_load(&end->slot->failed) && holds_slot(end)
        && (end->state != RECEIVE_PUSHED || (code = wm_push_ended(end)) <= 0))
        return sender_failed(end, err);
    return code;
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    wm_end_t *end = (wm_end_t *)op;
    int code = advance(end, &err);
    if (code > 0 && wm_unpack_is_left(end)) {
        end->state = RECEIVE_UNPACK;
        code = wm_unpack_step(end, &err);
    }
    if (code == 0)
        return false;
    if (code < 0) {
        if (atomic_load(&end->op.done)) // on a stream
            wm_comm_keep_error(end->op.comm, true, end->op.result.source,
                               end->op.result.tag, &err);
        wm_op_fail(&end->op, &err);
        if (err.code == WM_ERR_MPI)
            wm_failure_release(end->op.comm); // what our streams may wait for
        // What takes the data may not be launched yet.
        wm_batch_flush();
        // A stream that waits for a sender who failed waits in vain.
        if (end->on_stream && atomic_load(&end->slot->failed))
            wm_slot_ready_for_sender(end->slot, end->pieces.ready_base + 1);
        // What our stream was given must not touch the slot any more.
        if ((end->access.opened
             || (end->batched && end->access.stream != NULL))
            && wm_stream_synchronize(end->access.device, end->access.stream,
                                     NULL)
                   < 0
            && end->fetching)
            end->packet = NULL; // given up: a kernel may write its status
        if (end->side != NULL)
            (void)!wm_stream_synchronize(end->access.device, end->side, NULL);
        if (end->recorded)
            (void)!wm_event_synchronize(end->access.user_device, end->event,
                                        NULL);
        else if (end->on_stream && !atomic_load(&end->op.done))
            (void)!wm_stream_synchronize(end->access.user_device,
                                         end->access.user_stream, NULL);
        answer_error(end, &err);
        if (end->state == RECEIVE_PAYLOAD && !end->discards) {
            end->discards = true; // the sender goes on sending
            return false;
        }
    }
    wm_end_drop(end);
    return true;
}

// MPI ends a cancelled receive locally, cancelled or matched after all.
static bool
cancel(wm_op_t *op)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->state == RECEIVE_HEADER && end->matching != MPI_REQUEST_NULL)
        MPI_Cancel(&end->matching);
    end->withdrawn = end->blocking || is_coming(end);
    end->held = false;
    return true;
}

static bool
interrupt(wm_op_t *op)
{
    return ((wm_end_t *)op)->blocking && cancel(op);
}

static bool
hold(wm_op_t *op, bool held)
{
    wm_end_t *end = (wm_end_t *)op;
    if (!end->blocking)
        return true;
    end->held = held && end->state == RECEIVE_HEADER
                && !atomic_load(&op->done);
    return end->held;
}

// Our kernels and streams wait for it no more.
static void
peer_died(wm_op_t *op, const wm_peer_t *peer)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->peer != peer || end->slot == NULL)
        return;
    wm_slot_fail_for_sender(end->slot);
    if (end->on_stream)
        wm_slot_ready_for_sender(end->slot, end->pieces.ready_base + 1);
}

static const wm_op_kind_t kind = {
    .step = step,
    .asks = wm_end_asks,
    .about = wm_end_about,
    .buffer = wm_end_buffer,
    .cancel = cancel,
    .interrupt = interrupt,
    .hold = hold,
    .meet = wm_end_meet,
    .peer_died = peer_died,
    .free = wm_end_free,
};

bool
wm_end_is_receive(const wm_op_t *op)
{
    return op->kind == &kind;
}

// Who uses the buffer now must be waited for, and usually nobody does: taken
// note of here, while the message is on its way. Whatever cannot be is left to
// the transport.
static void
look_at_producer(wm_end_t *end)
{
    wm_producer_t *producer = &end->access.producer;
    bool idle = false;
    if (end->blocking && wm_end_borrows(end))
        return;
    if (producer->kind == WM_PRODUCER_STREAM && end->access.user_device < 0) {
        wm_access_take_note(&end->access); // takes a tenth of asking
        return;
    }
    if (wm_producer_idle(producer, true, &idle, NULL) == 0 && idle)
        producer->kind = WM_PRODUCER_NONE;
}

static int
begin(wm_comm_t *comm, wm_buffer_t *buffer, const wm_envelope_t *envelope,
      wm_op_t **result, wm_error_t *err)
{
    wm_end_t *end;
    int code = wm_comm_raise_kept(comm, err);
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    code = wm_end_new(&kind, comm, buffer, envelope, true, &end, err);
    if (code < 0)
        return code;
    *result = &end->op;
    if (atomic_load(&end->op.done))
        return 0;
    code = wm_settle_producer(&end->buffer, &end->access.producer, envelope,
                              true, err);
    if (code == 0)
        code = wm_unpack_prepare(end, err);
    bool device = wm_buffer_on_device(&end->buffer);
    if (code == 0)
        code = wm_end_packet(end, device, err);
    if (code == 0) {
        wm_engine_lock();
        code = post_lock_held(end, envelope->matched, err);
        if (code == 0 && device) { // which may take a while
            wm_engine_unlock();
            look_at_producer(end);
            wm_engine_lock();
        }
        if (code == 0) {
            wm_op_retain(&end->op); // the engine's
            wm_engine_add_lock_held(&end->op);
            if (device && comm->stash != NULL)
                wm_stash_look_again(end);
            if (envelope->requested) // else it is tried, and told, again
                (void)!wm_request_start_lock_held(&end->op, NULL);
        }
        wm_engine_unlock();
    }
    if (code < 0) {
        *result = NULL;
        wm_op_release(&end->op);
    }
    return code;
}

bool
wm_receive_is_pickled(const wm_op_t *op)
{
    return ((const wm_end_t *)op)->header.pickled;
}

int
wm_receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                 const wm_envelope_t *envelope, wm_op_t **result,
                 wm_error_t *err)
{
    return wm_end_begin_in_device(begin, comm, buffer, envelope, result, err);
}
