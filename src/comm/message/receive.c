// SPDX-License-Identifier: BSD-3-Clause
// The receiver's end. MPI matches the header. Then the receiver, which alone
// knows both ends, decides how the payload comes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/engine/request.h"
#include "comm/engine/stats.h"
#include "comm/message/element.h"
#include "comm/message/p2p.h"
#include "comm/message/pack.h"
#include "comm/message/unexpected.h"
#include "comm/message/protocol.h"

enum {
    RECEIVE_HEADER, // not matched
    RECEIVE_COMES,  // its protocol takes the payload
    RECEIVE_UNPACK, // all has arrived, and must be unpacked
};

// Tells a synchronous sender that a receive has begun.
static void
take_token(const wm_end_t *end)
{
    MPI_Request request;
    if (MPI_Irecv(NULL, 0, MPI_BYTE, end->op.result.source,
                  (int)(end->header.token - 1), end->op.comm->data, &request)
        == MPI_SUCCESS)
        wm_posted_leave(end->op.comm, &request);
}

// Allocates host memory for a message, whose size is known by now.
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
    buffer->release = free;
    return 0;
}

// Returns true if the message does not fit the receive's type; it is
// discarded.
static bool
is_refused(const wm_end_t *end, wm_error_t *err)
{
    int sent = end->header.element, element = end->buffer.element;
    bool pickle = end->header.pickled && end->buffer.numbers;
    bool differ = sent != 0 && element != 0 && sent != element;
    if (pickle)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "Recv met send: rank %d sent a pickled object; receive "
                     "it by recv, or its bytes into a bytearray",
                     end->op.result.source);
    else if (differ)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "rank %d sent %llu of %s, the receive buffer has %llu of "
                     "%s: give both the same element type",
                     end->op.result.source,
                     wm_element_count(sent, end->header.nbytes),
                     wm_element_name(sent),
                     wm_element_count(element, end->buffer.nbytes),
                     wm_element_name(element));
    return pickle || differ;
}

// Cancels a receive from any rank after a rank has died, as MPI does not end
// it. Returns true if a message came before.
static bool
came_after_all(wm_end_t *end, MPI_Status *status)
{
    int cancelled = 1;
    if (end->matching == MPI_REQUEST_NULL)
        return false;
    MPI_Cancel(&end->matching);
    if (MPI_Wait(&end->matching, status) == MPI_SUCCESS
        || wm_posted_came(&end->matching, status))
        MPI_Test_cancelled(status, &cancelled);
    return !cancelled;
}

// Returns true if the message is in the unexpected queue, but not yet
// complete.
static bool
is_coming(const wm_end_t *end)
{
    return end->receives && end->state == RECEIVE_HEADER
           && !end->was_unexpected && end->matching == MPI_REQUEST_NULL;
}

static int
post_lock_held(wm_end_t *end, wm_unexpected_t *matched, wm_error_t *err)
{
    int code = WM_UNEXPECTED_TAKEN;
    if (matched != NULL)
        wm_unexpected_open(end, matched);
    else if ((code = wm_unexpected_match(end, err)) < 0)
        return code;
    end->was_unexpected = code == WM_UNEXPECTED_TAKEN;
    if (code != WM_UNEXPECTED_NONE)
        return 0;
    return wm_mpi_check(MPI_Irecv(end->packet, (int)WM_PACKET_BYTES, MPI_BYTE,
                                  end->rank, end->tag, end->op.comm->match,
                                  &end->matching),
                        "MPI_Irecv", err);
}

// Looks for the header. Returns 1 when it has come, or never will.
static int
look_for_header(wm_end_t *end, wm_error_t *err)
{
    int flag = 0, code;
    MPI_Status status;
    if (end->held)
        return 0;
    if (is_coming(end) && end->withdrawn) {
        wm_unexpected_let_go(end);
        end->op.result.cancelled = true;
        return 1;
    }
    if (is_coming(end)) {
        // Posts to MPI if nothing is coming.
        code = post_lock_held(end, NULL, err);
        if (code < 0 || !end->was_unexpected)
            return code;
    }
    if (!end->was_unexpected) {
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
        end->op.result.cancelled = wm_unexpected_put(end);
    return 1;
}

// Asks, while no header has come, if the users of the buffer have ended. This
// takes longer than noting them, but saves the copy a wait. Done once, and
// only for a blocking caller, whose stream usually has no other work.
static void
ask_about_producer(wm_end_t *end)
{
    if (!end->blocking || end->asked_producer
        || !wm_access_is_noted(&end->access))
        return;
    end->asked_producer = true;
    (void)wm_access_ask_note(&end->access);
}

int
wm_receive_damaged(const wm_end_t *end, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the header of a message from rank %d is damaged",
                        end->op.result.source);
}

// Returns the protocol that a header asks for; NULL: there is none.
static const wm_receiving_t *
choose(const wm_header_t *header)
{
    const wm_receiving_t *const *row = wm_protocols.receiving;
    while (*row != NULL && ((*row)->kind == 0 || (*row)->kind != header->kind))
        ++row;
    return *row;
}

// Reads the header, and checks it.
static int
read_header(wm_end_t *end, wm_error_t *err)
{
    const wm_header_t *header = &end->header;
    int source = end->op.result.source;
    wm_header_read(&end->header, end->packet);
    if (header->magic != WM_HEADER_MAGIC)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "a message from rank %d has no header of warpmpi",
                            source);
    end->op.result.nbytes = wm_end_fitting_bytes(end);
    end->peer = end->op.comm->peers[source];
    if (header->token > (uint32_t)wm_comm_last_number(end->op.comm) + 1)
        return wm_receive_damaged(end, err);
    if (!header->failed) {
        wm_receive_become(end, choose(header));
        if (end->receiving == NULL || !end->receiving->check(end))
            return wm_receive_damaged(end, err);
    }
    if (header->token != 0)
        take_token(end);
    if (header->failed == WM_FAILED_STAGING)
        return wm_require_hear("sender", source, header->text, err);
    if (header->failed)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the sender, rank %d, failed: %.159s", source,
                            header->text);
    return 0;
}

// Handles the header. Returns 1 when the message has ended.
static int
receive_match(wm_end_t *end, wm_error_t *err)
{
    const wm_header_t *header = &end->header;
    int code = read_header(end, err);
    if (code < 0)
        return code;
    bool refused = header->nbytes > end->buffer.nbytes;
    if (refused)
        wm_error_set(
            err, WM_ERR_TRUNCATE, MPI_ERR_TRUNCATE,
            "message truncated: %llu bytes came from rank %d with tag %d, the "
            "receive buffer holds %zu: make the receive buffer larger",
            (unsigned long long)header->nbytes, end->op.result.source,
            end->op.result.tag, end->buffer.nbytes);
    else if (end->buffer.grows) // without memory the data are discarded, too
        refused = grow(end, err) < 0;
    end->op.result.nbytes = wm_end_fitting_bytes(end);
    refused = is_refused(end, err) || refused;
    if (refused)
        wm_op_fail(&end->op, err);
    wm_stat_add(WM_STAT_received_messages, 1);
    wm_stat_add(WM_STAT_received_bytes, (int64_t)header->nbytes);
    end->state = RECEIVE_COMES;
    wm_route_t route;
    wm_route_begin(&route);
    if (route.wanted && end->receiving->kind != WM_MESSAGE_OFFER)
        wm_end_route(end, &route, end->receiving->name);
    return end->receiving->match(end, refused, err);
}

static int
advance(wm_end_t *end, wm_error_t *err)
{
    int code;
    switch (end->state) {
    case RECEIVE_HEADER:
        code = look_for_header(end, err);
        if (code == 0)
            ask_about_producer(end);
        return code <= 0 || end->op.result.cancelled ? code
                                                     : receive_match(end, err);
    case RECEIVE_COMES:
        return end->receiving->step(end, err);
    default:
        return wm_unpack_step(end, err);
    }
}

// Handles a failure. Returns true if the receive goes on, to discard data that
// still come.
static bool
receive_fail(wm_end_t *end, const wm_error_t *err)
{
    if (atomic_load(&end->op.done)) // a receive on a stream
        wm_comm_keep_error(end->op.comm, true, end->op.result.source,
                           end->op.result.tag, err);
    wm_op_fail(&end->op, err);
    if (err->code == WM_ERR_MPI)
        wm_failure_release(end->op.comm); // releases our streams
    wm_protocols.flush();                 // the fetch may not be launched yet
    if (end->receiving == NULL || !end->receiving->fail(end, err)
        || end->discards || end->state != RECEIVE_COMES)
        return false;
    end->discards = true;
    return true;
}

static bool
receive_step(wm_op_t *op)
{
    wm_error_t err;
    wm_end_t *end = (wm_end_t *)op;
    int code = advance(end, &err);
    if (code > 0 && end->buffer.pattern != NULL && wm_unpack_is_left(end)) {
        end->state = RECEIVE_UNPACK;
        code = wm_unpack_step(end, &err);
    }
    if (code == 0 || (code < 0 && receive_fail(end, &err)))
        return false;
    wm_end_drop(end);
    return true;
}

// Cancels a receive. MPI ends it locally, cancelled or matched after all.
static bool
receive_cancel(wm_op_t *op)
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
    return ((wm_end_t *)op)->blocking && receive_cancel(op);
}

static bool
receive_hold(wm_op_t *op, bool held)
{
    wm_end_t *end = (wm_end_t *)op;
    if (!end->blocking)
        return true;
    end->held = held && end->state == RECEIVE_HEADER
                && !atomic_load(&op->done);
    return end->held;
}

// Releases our kernels and streams that wait for the peer.
static void
receive_peer_died(wm_op_t *op, const wm_peer_t *peer)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->peer == peer && end->receiving != NULL
        && end->receiving->peer_died != NULL)
        end->receiving->peer_died(end);
}

static const wm_op_kind_t kind = {
    .step = receive_step,
    .asks = wm_end_asks,
    .about = wm_end_about,
    .buffer = wm_end_buffer,
    .cancel = receive_cancel,
    .interrupt = interrupt,
    .hold = receive_hold,
    .synchronize = wm_end_synchronize,
    .peer_died = receive_peer_died,
    .free = wm_end_free,
};

bool
wm_end_is_receive(const wm_op_t *op)
{
    return op->kind == &kind;
}

// Notes the users of the buffer while the message is on its way; usually there
// are none. The protocol handles what cannot be noted.
static void
look_at_producer(wm_end_t *end)
{
    wm_producer_t *producer = &end->access.producer;
    bool idle = false;
    if (end->blocking && wm_end_borrows(end))
        return;
    if (producer->kind == WM_PRODUCER_STREAM && end->access.user_device < 0) {
        wm_access_record(&end->access); // takes a tenth of asking
        return;
    }
    if (wm_producer_idle(producer, true, &idle, NULL) == 0 && idle)
        producer->kind = WM_PRODUCER_NONE;
}

static int
receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **result, wm_error_t *err)
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
    code = wm_await_producer(&end->buffer, &end->access.producer, envelope,
                             true, err);
    if (code == 0 && end->buffer.pattern != NULL)
        code = wm_unpack_prepare(end, err);
    bool device = wm_buffer_on_device(&end->buffer);
    if (code == 0)
        code = wm_end_packet(end, device, err);
    if (code == 0) {
        wm_engine_lock();
        code = post_lock_held(end, envelope->matched, err);
        if (code == 0 && device) { // may take a while
            wm_engine_unlock();
            look_at_producer(end);
            wm_engine_lock();
        }
        if (code == 0) {
            wm_engine_add_lock_held(&end->op);
            if (device && comm->unexpected != NULL)
                wm_unexpected_look_again(end);
            // On failure, the caller tries again and gets the error.
            if (envelope->requested)
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
    bool device = wm_buffer_on_device(buffer); // the call takes it over
    if (device)
        wm_device_stay();
    int code = receive_begin(comm, buffer, envelope, result, err);
    if (device)
        wm_device_go();
    return code;
}
