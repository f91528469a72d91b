// SPDX-License-Identifier: BSD-3-Clause
// The sender's end sends the header; its protocol sends the payload after it.
#include <string.h>

#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/engine/stats.h"
#include "comm/message/buffered.h"
#include "comm/message/p2p.h"
#include "comm/message/pack.h"
#include "comm/message/protocol.h"

enum {
    SEND_NEW,
    SEND_UNDER_WAY,
    SEND_FAILED,
};

// Sends the header. A probe takes the header as well, so for a synchronous
// send an empty message follows, which only a receive takes. Its request
// replaces that of the header, which has ended by then.
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

// Sends an error instead of the message, after a CUDA error before anything
// was sent, as the receiver may be waiting.
static void
send_failure(wm_end_t *end, const wm_error_t *err)
{
    wm_error_t ignored;
    end->header.magic = WM_HEADER_MAGIC;
    end->header.kind = WM_MESSAGE_EAGER;
    end->header.failed = err->code == WM_ERR_STAGING ? WM_FAILED_STAGING
                                                     : WM_FAILED;
    if (end->synchronous && end->header.token == 0)
        end->header.token =
            1 + wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
    if (end->packet == NULL && wm_end_packet(end, false, &ignored) < 0)
        return;
    end->header.order = wm_comm_order(end->op.comm, end->rank);
    wm_header_t failure = end->header; // keeps the numbers of the header
    wm_error_cut(wm_require_told(err), sizeof failure.text, failure.text);
    memcpy(end->packet, &failure, sizeof failure);
    if (send_header(end, (int)sizeof failure, &ignored) == 0)
        end->state = SEND_UNDER_WAY;
}

bool
wm_send_tells(int code)
{
    return code == WM_ERR_CUDA || code == WM_ERR_MEMORY
           || code == WM_ERR_SYSTEM || code == WM_ERR_STAGING;
}

static bool
nothing_follows(const wm_end_t *end)
{
    return end->sending == NULL || end->sending->step == NULL;
}

void
wm_send_fail(wm_end_t *end, const wm_error_t *err)
{
    const wm_access_t *access = &end->access;
    wm_op_fail(&end->op, err);
    wm_protocols.flush(); // its kernel may not be launched yet
    // Our stream must not touch the ring or the words after this. If the user
    // may have destroyed the stream, slot and eager LL buffer leak.
    if (access->opened
        && !(wm_access_is_named(access) && atomic_load(&end->op.done)))
        (void)!wm_stream_synchronize(access->device, access->stream, NULL);
    bool comes = !nothing_follows(end) && end->sending->fail(end);
    end->state = SEND_FAILED;
    // If the message comes, the receiver may be reading the buffer.
    if (!comes)
        wm_op_complete(&end->op);
}

// Returns the row that serves the message.
static const wm_sending_t *
choose(wm_end_t *end, wm_route_t *route)
{
    const wm_sending_t *const *row = wm_protocols.sending;
    bool packs = end->around == NULL
                 && (end->buffer.pattern != NULL || wm_protocols.copies(end));
    for (;; ++row) {
        const char *why = "";
        if ((*row)->packs && !packs)
            continue;
        if ((*row)->try_take(end, &why))
            return *row;
        wm_route_decline(route, (*row)->name, why);
    }
}

// Begins the payload, and fills the header.
static int
begin_payload(wm_end_t *end, wm_error_t *err)
{
    wm_route_t route;
    int code = 0;
    wm_route_begin(&route);
    const wm_sending_t *row = choose(end, &route);
    if (row->packs) {
        wm_route_begin(&route);
        code = row->offer(end, err);
        row = code == 0 ? choose(end, &route) : NULL;
    }
    wm_send_become(end, row);
    end->taker = row;
    if (code == 0)
        code = row->offer(end, err);
    if (code == 0)
        wm_end_route(end, &route, end->sending->name);
    return code;
}

// Lets the caller go on, as its stream has the copy of the message.
static int
send_copied(wm_end_t *end, wm_error_t *err)
{
    if (end->around == NULL || !wm_protocols.copies(end))
        return 0;
    int code = wm_end_leave_stream(end, err);
    wm_engine_notify(); // nobody else may wait for the receiver
    return code;
}

// Begins the message, and sends its header.
static int
try_start(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    wm_header_describe(header, &end->buffer);
    if (end->synchronous)
        header->token = 1 + wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
    int code = begin_payload(end, err);
    if (code == 0 && end->packet == NULL)
        code = wm_end_packet(end, false, err);
    if (code < 0)
        return code;
    size_t length = wm_header_length(header);
    size_t inlined = nothing_follows(end) ? end->buffer.nbytes : 0;
    bool on_host = !wm_buffer_on_device(&end->buffer); // else it is there
    header->order = wm_comm_order(end->op.comm, end->rank);
    memcpy(end->packet, header, length);
    if (inlined > 0 && on_host)
        memcpy(end->packet + length, end->buffer.data, inlined);
    code = send_header(end, (int)(length + inlined), err);
    if (code < 0)
        return code;
    end->state = SEND_UNDER_WAY;
    // The header is on its way while we launch a copy, or ask whether a stream
    // is idle, which take longer.
    wm_error_t late;
    code = end->around != NULL ? end->around->go(end, &late) : 0;
    if (code == 0 && end->sending->go != NULL)
        code = end->sending->go(end, &late);
    if (code == 0)
        code = send_copied(end, &late);
    if (code < 0)
        wm_send_fail(end, &late);
    return 0;
}

static int
send_start(wm_end_t *end, wm_error_t *err)
{
    int code = try_start(end, err);
    if (!wm_send_tells(code))
        return code;
    wm_op_fail(&end->op, err);
    if (end->access.opened)
        (void)!wm_stream_synchronize(end->access.device, end->access.stream,
                                     NULL);
    wm_end_drop(end);
    wm_send_become(end, NULL);
    end->taker = NULL;
    send_failure(end, err);
    wm_op_complete(&end->op);
    return end->state == SEND_UNDER_WAY ? 0 : code;
}

static bool
send_step(wm_op_t *op)
{
    wm_error_t err;
    wm_end_t *end = (wm_end_t *)op;
    int flag = 1, code = 0;
    if (end->batched) // it waits for its batch
        return false;
    if (end->matching != MPI_REQUEST_NULL)
        code = wm_mpi_check(MPI_Test(&end->matching, &flag, MPI_STATUS_IGNORE),
                            "MPI_Test", &err);
    if (code == 0 && end->state == SEND_UNDER_WAY)
        code = nothing_follows(end) ? 1 : end->sending->step(end, &err);
    if (end->state == SEND_FAILED)
        code = nothing_follows(end) || end->sending->heard(end);
    if (code < 0)
        wm_send_fail(end, &err);
    if (code <= 0 || !flag)
        return false;
    wm_end_drop(end);
    return true;
}

static void
send_peer_died(wm_op_t *op, const wm_peer_t *peer)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->peer == peer && end->sending != NULL
        && end->sending->peer_died != NULL)
        end->sending->peer_died(end);
}

static const wm_op_kind_t kind = {
    .step = send_step,
    .asks = wm_end_asks,
    .about = wm_end_about,
    .buffer = wm_end_buffer,
    .synchronize = wm_end_synchronize,
    .peer_died = send_peer_died,
    .free = wm_end_free,
};

bool
wm_end_is_send(const wm_op_t *op)
{
    return op->kind == &kind;
}

// Returns true if MPI reads the packet of a short send, and nobody the GPU
// memory: the caller, who need not wait for the receiver, goes on.
static bool
send_left(const wm_end_t *end)
{
    return end->state == SEND_UNDER_WAY && nothing_follows(end)
           && end->blocking && !end->synchronous
           && wm_buffer_on_device(&end->buffer);
}

// Begins a send. The engine holds its own reference; none after a failure.
static int
begin_sending(wm_end_t *end, const wm_envelope_t *envelope, wm_error_t *err)
{
    int code = 0;
    int settled = wm_await_producer(&end->buffer, &end->access.producer,
                                    envelope, false, err);
    if (settled == 0)
        settled = end->buffer.pattern != NULL ? wm_pack_prepare(end, err) : 0;
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
    wm_engine_add_lock_held(&end->op);
    if (settled == 0)
        code = send_start(end, err);
    else {
        send_failure(end, &end->op.error);
        wm_op_complete(&end->op);
        code = end->state == SEND_UNDER_WAY ? 0 : settled;
    }
    if (code < 0)
        wm_end_drop(end);
    // MPI has usually sent a short message by now: nobody waits. A payload in
    // host memory, or copied there, follows its header at once.
    bool short_one = end->header.kind == WM_MESSAGE_EAGER && end->blocking;
    bool on_host = end->header.kind == WM_MESSAGE_DATA
                   && (!wm_buffer_on_device(&end->buffer) || end->access.idle);
    bool ended = code < 0
                 || (end->state == SEND_UNDER_WAY && (short_one || on_host)
                     && send_step(&end->op));
    if (ended)
        wm_engine_remove_lock_held(&end->op);
    else if (send_left(end)) {
        wm_op_complete(&end->op);
        wm_engine_notify();
    }
    if (!end->blocking)
        wm_engine_begun_lock_held();
    wm_engine_unlock();
    if (ended)
        wm_op_release(&end->op);
    return code;
}

static int
send_begin(wm_comm_t *comm, wm_buffer_t *buffer, const wm_envelope_t *envelope,
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
    if (wm_protocols.fits_inline(comm, buffer, envelope)) {
        code = wm_protocols.send_inline(comm, buffer, envelope, result, err);
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
    bool device = wm_buffer_on_device(buffer); // the call takes it over
    if (device)
        wm_device_stay();
    int code = send_begin(comm, buffer, envelope, result, err);
    if (device)
        wm_device_go();
    return code;
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
        if (end->state == SEND_UNDER_WAY)
            wm_engine_add_lock_held(&end->op);
        wm_engine_unlock();
        wm_engine_notify();
    }
    wm_op_release(&end->op);
}

void
wm_send_flush(void)
{
    wm_engine_lock();
    wm_protocols.flush();
    wm_engine_unlock();
}
