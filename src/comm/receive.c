// SPDX-License-Identifier: BSD-3-Clause
// The receiver's end: MPI matches the header, and the receiver, who alone
// knows both ends, decides how the payload comes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/batch.h"
#include "comm/bounds.h"
#include "comm/eager.h"
#include "comm/element.h"
#include "comm/failure.h"
#include "comm/mapping.h"
#include "comm/p2p.h"
#include "comm/pack.h"
#include "comm/payload.h"
#include "comm/pieces.h"
#include "comm/progress.h"
#include "comm/push.h"
#include "comm/request.h"
#include "comm/stash.h"
#include "comm/stats.h"
#include "comm/transport.h"
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
holds_slot(const wm_op_t *op)
{
    return op->slot != NULL
           && (op->pieces.pieces == 0
               || !wm_word_reached(&op->slot->taken,
                                   op->pieces.taken_base + op->pieces.pieces));
}

static void
answer_error(wm_op_t *op, const wm_error_t *err)
{
    if (!holds_slot(op))
        return;
    wm_slot_answer_error(op->slot, err->text);
}

// The eager payload, or what fits of it, into the buffer; 1 when it is there.
static int
take_eager(wm_op_t *op, wm_error_t *err)
{
    size_t length = op->header.nbytes;
    const char *payload = op->packet + wm_header_length(&op->header);
    if (op->error.code != 0)
        return 1; // truncated, or refused
    int code = wm_unpack_reserve(op, err);
    if (code < 0)
        return code;
    if (!wm_buffer_on_device(&op->buffer)) {
        if (length > 0)
            memcpy(op->buffer.data, payload, length);
        wm_stat_add(WM_STAT_mpi_messages, 1);
        wm_stat_add(WM_STAT_mpi_bytes, (int64_t)length);
        return 1;
    }
    if (length == 0)
        return 1;
    code = wm_op_open_stream(op, err);
    if (code == 0)
        code = wm_memory_copy(op->device, op->buffer.data, payload, length,
                              op->stream, err);
    wm_transport_host.count(op);
    return code;
}

static const wm_transport_t *
choose(wm_op_t *op)
{
    if (op->peer->self)
        return &wm_transport_self;
    if (op->header.stage_only == WM_STAGE_UNEXPORTABLE) {
        op->peer->ipc_refused = true;
        snprintf(op->peer->reason, sizeof op->peer->reason,
                 "CUDA IPC could not export its GPU memory");
    }
    if (op->header.stage_only)
        return &wm_transport_host;
    return wm_transport_take(op->peer, &op->buffer.memory);
}

// Tells who sends synchronously that a receive has begun.
static void
take_token(const wm_op_t *op)
{
    MPI_Request request;
    if (MPI_Irecv(NULL, 0, MPI_BYTE, op->result.source,
                  (int)(op->header.token - 1), op->comm->data, &request)
        == MPI_SUCCESS)
        wm_op_leave(op->comm, &request);
}

static void
free_received(void *memory)
{
    free(memory);
}

// Host memory for a message of unknown size, now that it is known.
static int
grow(wm_op_t *op, wm_error_t *err)
{
    wm_buffer_t *buffer = &op->buffer;
    buffer->grows = false;
    buffer->nbytes = 0;
    size_t size = op->header.nbytes;
    buffer->data = size < SIZE_MAX ? malloc(size + 1) : NULL;
    if (buffer->data == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "out of host memory for a message of %zu bytes "
                            "from rank %d",
                            size, op->result.source);
    buffer->nbytes = size;
    buffer->owner = buffer->data;
    buffer->release = free_received;
    return 0;
}

// What came is not what the receive is of: it is thrown away.
static bool
is_refused(const wm_op_t *op, wm_error_t *err)
{
    int sent = op->header.element, element = op->buffer.element;
    bool pickle = op->header.pickled && op->buffer.numbers;
    bool differ = sent != 0 && element != 0 && sent != element;
    if (pickle)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "Recv met send: rank %d sent a pickled object; receive "
                     "it by recv, or its bytes into a bytearray",
                     op->result.source);
    else if (differ)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "rank %d sent %llu of %s, the receive is of %llu of %s; "
                     "give both the same element type",
                     op->result.source,
                     wm_element_count(sent, op->result.nbytes),
                     wm_element_name(sent),
                     wm_element_count(element, op->buffer.nbytes),
                     wm_element_name(element));
    return pickle || differ;
}

// The header has come: what now? 1 when the message has ended.
static int
match(wm_op_t *op, wm_error_t *err)
{
    wm_header_read(&op->header, op->packet);
    if (op->header.magic != WM_HEADER_MAGIC)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "what came from rank %d is no message of "
                            "warpmpi's",
                            op->result.source);
    op->result.nbytes = op->header.nbytes;
    op->peer = op->comm->peers[op->result.source];
    int code = wm_bounds_check_header(op, err);
    if (code < 0)
        return code;
    if (op->header.token != 0)
        take_token(op);
    if (op->header.failed)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the sender, rank %d, failed: %.63s",
                            op->result.source, op->header.text);
    bool truncated = op->header.nbytes > op->buffer.nbytes;
    if (truncated)
        wm_error_set(&op->error, WM_ERR_TRUNCATE, MPI_ERR_TRUNCATE,
                     "message truncated: %llu bytes came from rank %d with "
                     "tag %d, the receive buffer holds %zu",
                     (unsigned long long)op->header.nbytes, op->result.source,
                     op->result.tag, op->buffer.nbytes);
    else if (op->buffer.grows) // what cannot be had is thrown away likewise
        truncated = grow(op, &op->error) < 0;
    truncated = is_refused(op, &op->error) || truncated;
    wm_stat_add(WM_STAT_received_messages, 1);
    wm_stat_add(WM_STAT_received_bytes, (int64_t)op->header.nbytes);
    if (op->header.kind == WM_MESSAGE_EAGER) {
        op->state = RECEIVE_COPY;
        return take_eager(op, err);
    }
    if (op->header.kind == WM_MESSAGE_DATA) {
        op->state = RECEIVE_PAYLOAD;
        bool device = wm_buffer_on_device(&op->buffer);
        op->carried = device && wm_transport_is_carried(op->peer);
        if (device && !op->carried)
            wm_transport_host.count(op);
        else
            wm_transport_mpi.count(op);
        return truncated ? 0 : wm_unpack_reserve(op, err);
    }
    if (truncated) { // the sender completes, nothing is taken
        wm_slot_set_taken(op->slot, op->header.taken_base + op->header.pieces);
        return 1;
    }
    code = wm_unpack_match(op, err);
    op->transport = choose(op);
    op->state = RECEIVE_ACCEPT;
    return code;
}

// Whether the progress thread leaves it to a thread of the program's, which
// may close what stands in the way of a mapping, and comes soon as a rule.
static bool
is_left_to_program(wm_op_t *op)
{
    if (!wm_engine_is_background() || !wm_mapping_is_closing_wanted())
        return false;
    int64_t now = wm_engine_now();
    if (op->since == 0)
        op->since = now;
    return now - op->since < PATIENCE_US;
}

static int
accept_offer(wm_op_t *op, wm_error_t *err)
{
    if (wm_push_ask(op)) {
        op->state = RECEIVE_PUSHED;
        return 0;
    }
    int code = op->transport->accept(op, err);
    if (code < 0 && is_left_to_program(op))
        return 0;
    if (code < 0 && op->transport != &wm_transport_host) {
        op->transport = &wm_transport_host;
        code = op->transport->accept(op, err);
    }
    if (code == 0) {
        op->transport->count(op);
        op->state = op->slot != NULL ? RECEIVE_PULL : RECEIVE_PAYLOAD;
        code = wm_unpack_accept(op, err);
    }
    return code < 0 ? code : 0;
}

// A receive from anybody goes on where one has died. True when a message came
// before it could be taken back.
static bool
came_after_all(wm_op_t *op, MPI_Status *status)
{
    int cancelled = 1;
    if (op->parts[0] == MPI_REQUEST_NULL)
        return false;
    MPI_Cancel(&op->parts[0]);
    if (MPI_Wait(&op->parts[0], status) == MPI_SUCCESS)
        MPI_Test_cancelled(status, &cancelled);
    return !cancelled;
}

// Its header is the stash's, but not all there.
static bool
is_coming(const wm_op_t *op)
{
    return op->receives && op->state == RECEIVE_HEADER && !op->stashed
           && op->parts[0] == MPI_REQUEST_NULL;
}

static int
post_lock_held(wm_op_t *op, wm_stashed_t *matched, wm_error_t *err)
{
    int code = WM_STASH_TAKEN;
    if (matched != NULL)
        wm_stash_open(op, matched);
    else if ((code = wm_stash_take(op, err)) < 0)
        return code;
    op->stashed = code == WM_STASH_TAKEN;
    if (code != WM_STASH_NONE)
        return 0;
    return wm_mpi_check(MPI_Irecv(op->packet, (int)WM_PACKET_BYTES, MPI_BYTE,
                                  op->rank, op->tag, op->comm->match,
                                  &op->parts[0]),
                        "MPI_Irecv", err);
}

// Looks whether the header has come; 1 when it has, or none will.
static int
look_for_header(wm_op_t *op, wm_error_t *err)
{
    int flag = 0, code;
    MPI_Status status;
    if (op->held)
        return 0;
    if (is_coming(op) && op->withdrawn) {
        wm_stash_let_go(op);
        op->result.cancelled = true;
        return 1;
    }
    if (is_coming(op)) {
        code = post_lock_held(op, NULL, err); // MPI, where nothing comes
        if (code < 0 || !op->stashed)
            return code;
    }
    if (!op->stashed) {
        code = wm_mpi_check(MPI_Test(&op->parts[0], &flag, &status),
                            "MPI_Test", err);
        if (code < 0 && !came_after_all(op, &status)) {
            err->detail = wm_failure_of_any(err->detail);
            return code;
        }
        if (code == 0 && !flag)
            return 0;
        MPI_Test_cancelled(&status, &flag);
        op->result.cancelled = flag;
        op->result.source = status.MPI_SOURCE;
        op->result.tag = status.MPI_TAG;
    }
    if (op->withdrawn && !op->result.cancelled)
        op->result.cancelled = wm_stash_put(op);
    return 1;
}

// No header yet: there is time to ask whether those who used the buffer have
// ended, which takes longer than noting them, and spares the copy a wait.
// Once, and only for who is usually alone on his stream.
static void
ask_about_producer(wm_op_t *op)
{
    bool ended = false;
    if (!op->blocking || op->asked || op->after[0].event == NULL)
        return;
    op->asked = true;
    if (wm_event_done(op->after[0].device, op->after[0].event, &ended, NULL)
            < 0
        || !ended)
        return;
    wm_op_note_ended(op);
}

// It says so, or it is dead, as another message has found out: then `failed`
// is ours, and there is no text.
static int
sender_failed(const wm_op_t *op, wm_error_t *err)
{
    int code = op->peer->dead
                   ? wm_failure_look(op->comm, op->result.source, err)
                   : 0;
    return code < 0 ? code
                    : wm_error_set(err, WM_ERR_CUDA, 0,
                                   "the sender, rank %d, failed: %.120s",
                                   op->result.source, op->slot->error);
}

static int
advance(wm_op_t *op, wm_error_t *err)
{
    bool idle = false;
    int code, done = atomic_load(&op->done);
    switch (op->state) {
    case RECEIVE_HEADER:
        code = look_for_header(op, err);
        if (code == 0)
            ask_about_producer(op);
        if (code <= 0 || op->result.cancelled)
            return code;
        code = match(op, err);
        return code != 0 || op->state == RECEIVE_COPY ? code
                                                      : advance(op, err);
    case RECEIVE_COPY:
        code = wm_stream_spin(op->device, op->stream, 16, &idle, err);
        op->idle = idle;
        return code < 0 ? code : idle;
    case RECEIVE_PAYLOAD:
        return wm_payload_receive(op, err);
    case RECEIVE_ACCEPT:
        // A user's stream takes what cannot be taken back: asked first.
        wm_eager_claim(op);
        code = atomic_load(&op->slot->failed) ? 0 : accept_offer(op, err);
        if (op->state == RECEIVE_PAYLOAD)
            return code;
        if (code < 0 || op->state != RECEIVE_PULL)
            break;
        // fall through
    case RECEIVE_PULL:
        code = wm_pieces_pull(op, err);
        if (atomic_load(&op->done) != done)
            return code; // told by this step: failures are the next one's
        break;
    case RECEIVE_PUSHED:
        code = wm_push_ended(op);
        if (code < 0)
            op->state = RECEIVE_ACCEPT;
        code = code > 0;
        break;
    case RECEIVE_UNPACK:
        return wm_unpack_step(op, err);
    default:
        return 1;
    }
    // What a living peer has posted comes, whoever revoked the communicator.
    if (code == 0 && op->slot != NULL && ++op->looks % LOOKS_FOR_PEER == 0
        && wm_failure_look(op->comm, op->result.source, err) < 0
        && (op->peer->dead || !op->on_stream)
        && (op->peer->dead || op->state != RECEIVE_PUSHED
            || wm_push_withdraw(op)))
        return WM_ERR_MPI;
    if (code == 0 && atomic_load(&op->slot->failed) && holds_slot(op)
        && (op->state != RECEIVE_PUSHED || (code = wm_push_ended(op)) <= 0))
        return sender_failed(op, err);
    return code;
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    int code = advance(op, &err);
    if (code > 0 && wm_unpack_is_left(op)) {
        op->state = RECEIVE_UNPACK;
        code = wm_unpack_step(op, &err);
    }
    if (code == 0)
        return false;
    if (code < 0) {
        if (atomic_load(&op->done)) // on a stream
            wm_comm_keep_error(op->comm, true, op->result.source,
                               op->result.tag, &err);
        wm_op_fail(op, &err);
        if (err.code == WM_ERR_MPI)
            wm_failure_release(op->comm); // what our streams may wait for
        // What takes the data may not be launched yet.
        wm_batch_flush();
        // A stream that waits for a sender who failed waits in vain.
        if (op->on_stream && atomic_load(&op->slot->failed))
            wm_slot_ready_for_sender(op->slot, op->pieces.ready_base + 1);
        // What our stream was given must not touch the slot any more.
        if ((op->opened || (op->batched && op->stream != NULL))
            && wm_stream_synchronize(op->device, op->stream, NULL) < 0
            && op->fetching)
            op->packet = NULL; // given up: a kernel may write its status
        if (op->side != NULL)
            (void)!wm_stream_synchronize(op->device, op->side, NULL);
        if (op->recorded)
            (void)!wm_event_synchronize(op->user_device, op->event, NULL);
        else if (op->on_stream && !atomic_load(&op->done))
            (void)!wm_stream_synchronize(op->user_device, op->user_stream,
                                         NULL);
        answer_error(op, &err);
        if (op->state == RECEIVE_PAYLOAD && !op->discards) {
            op->discards = true; // the sender goes on sending
            return false;
        }
    }
    wm_op_drop_resources(op);
    return true;
}

// Who uses the buffer now must be waited for, and usually nobody does: taken
// note of here, while the message is on its way. Whatever cannot be is left to
// the transport.
static void
look_at_producer(wm_op_t *op)
{
    wm_producer_t *producer = &op->buffer.producer;
    bool idle = false;
    if (op->blocking && wm_op_borrows(op))
        return;
    if (producer->kind == WM_PRODUCER_STREAM && op->user_device < 0) {
        wm_op_take_note(op); // takes a tenth of asking
        return;
    }
    if (wm_producer_idle(producer, true, &idle, NULL) == 0 && idle)
        producer->kind = WM_PRODUCER_NONE;
}

static int
begin(wm_comm_t *comm, wm_buffer_t *buffer, const wm_envelope_t *envelope,
      wm_op_t **result, wm_error_t *err)
{
    wm_op_t *op;
    int code = wm_comm_raise_kept(comm, err);
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    code = wm_begin_op(comm, buffer, envelope, true, &op, err);
    if (code < 0)
        return code;
    *result = op;
    if (atomic_load(&op->done))
        return 0;
    op->step = step;
    code = wm_settle_producer(&op->buffer, envelope, true, err);
    if (code == 0)
        code = wm_unpack_prepare(op, err);
    bool device = wm_buffer_on_device(&op->buffer);
    if (code == 0)
        code = wm_op_packet(op, device, err);
    if (code == 0) {
        wm_engine_lock();
        code = post_lock_held(op, envelope->matched, err);
        if (code == 0 && device) { // which may take a while
            wm_engine_unlock();
            look_at_producer(op);
            wm_engine_lock();
        }
        if (code == 0) {
            wm_op_retain(op); // the engine's
            wm_engine_add_lock_held(op);
            if (device && comm->stash != NULL)
                wm_stash_look_again(op);
            if (envelope->requested) // else it is tried, and told, again
                (void)!wm_request_start_lock_held(op, NULL);
        }
        wm_engine_unlock();
    }
    if (code < 0) {
        *result = NULL;
        wm_op_release(op);
    }
    return code;
}

int
wm_receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                 const wm_envelope_t *envelope, wm_op_t **result,
                 wm_error_t *err)
{
    return wm_begin_in_device(begin, comm, buffer, envelope, result, err);
}

bool
wm_op_cancel(wm_op_t *op)
{
    wm_engine_lock();
    if (op->receives && op->state == RECEIVE_HEADER
        && op->parts[0] != MPI_REQUEST_NULL)
        MPI_Cancel(&op->parts[0]);
    op->withdrawn = op->blocking || is_coming(op);
    op->held = false;
    wm_engine_unlock();
    // MPI ends a cancelled receive locally, cancelled or matched after all.
    return op->receives;
}

bool
wm_op_hold(wm_op_t *op)
{
    if (!op->receives || !op->blocking)
        return true;
    if (!wm_engine_try_lock())
        return false;
    op->held = op->state == RECEIVE_HEADER && !atomic_load(&op->done);
    wm_engine_unlock();
    return op->held;
}

void
wm_op_let_go_on(wm_op_t *op)
{
    wm_engine_lock();
    op->held = false;
    wm_engine_unlock();
}
