// SPDX-License-Identifier: BSD-3-Clause
// Short messages, whose payload follows the header in one packet. MPI takes
// most of them at once. Then nothing is left to do, and they share one
// operation, which has ended.

#include <string.h>

#include "comm/comm/failure.h"
#include "cuda/settings.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/message/pack.h"
#include "comm/message/packet.h"
#include "comm/message/protocol.h"
#include "comm/protocol/inline.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/pending_sends.h"

// A packet that MPI still reads.
typedef struct {
    wm_op_t op;
    MPI_Request request;
    char *packet;
    int rank, tag;
    uint64_t nbytes;
} sent_t;

static bool
inline_step(wm_op_t *op)
{
    return wm_posted_has_ended(op, &((sent_t *)op)->request);
}

static void
inline_about(const wm_op_t *op, wm_about_t *about)
{
    const sent_t *sent = (const sent_t *)op;
    *about = (wm_about_t){
        .is_message = true,
        .rank = sent->rank,
        .tag = sent->tag,
        .sized = true,
        .nbytes = sent->nbytes,
        .peer = op->comm->peers[sent->rank],
    };
}

static void
free_sent(wm_op_t *op)
{
    wm_packet_put(((sent_t *)op)->packet);
}

static const wm_op_kind_t kind = {
    .step = inline_step,
    .asks = wm_posted_asks,
    .about = inline_about,
    .free = free_sent,
};

static wm_op_t *
inline_begin(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes,
             MPI_Request request, char *packet)
{
    sent_t *sent = wm_op_new(&kind, sizeof *sent, comm);
    if (sent == NULL)
        return NULL;
    sent->request = request;
    sent->packet = packet;
    sent->rank = envelope->rank;
    sent->tag = envelope->tag;
    sent->nbytes = nbytes;
    wm_engine_add_lock_held(&sent->op);
    return &sent->op;
}

bool
wm_inline_fits(const wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope)
{
    return !envelope->buffered && !atomic_load(&comm->is_late)
           && buffer->nbytes <= WM_EAGER_BYTES && !wm_buffer_on_device(buffer)
           && buffer->pattern == NULL
           && buffer->producer.kind == WM_PRODUCER_NONE && envelope->rank >= 0
           && !envelope->synchronous
           && envelope->stream_device < 0
           // With it, operations are listed.
           && !wm_setting_is_on(WM_SETTING_CHECK);
}

static size_t
pack(const wm_buffer_t *buffer, uint32_t order, char *packet)
{
    wm_header_t header;
    memset(&header, 0, WM_HEADER_SHORT);
    wm_header_describe(&header, buffer);
    header.kind = WM_MESSAGE_EAGER;
    header.order = order;
    memcpy(packet, &header, WM_HEADER_SHORT);
    if (buffer->nbytes > 0)
        memcpy(packet + WM_HEADER_SHORT, buffer->data, buffer->nbytes);
    return WM_HEADER_SHORT + buffer->nbytes;
}

// Follows the packet to its end. If an earlier packet met a dead rank, this
// send raises it.
static int
inline_follow(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes,
              MPI_Request request, char *packet, wm_op_t **op, wm_error_t *err)
{
    int code = 0;
    *op = NULL;
    wm_engine_lock();
    // MPI may not have sent it yet.
    if (wm_engine_is_threaded()
        && wm_pending_sends_add(comm, envelope, nbytes, request, packet)) {
        if (comm->peers[envelope->rank]->dead)
            code = wm_failure_look(comm, envelope->rank, err);
        if (code == 0)
            *op = wm_op_ended();
    }
    else
        *op = inline_begin(comm, envelope, nbytes, request, packet);
    wm_engine_unlock();
    if (code < 0 || *op != NULL)
        return code;
    code = wm_mpi_check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait",
                        err); // no memory for an operation
    wm_packet_put(packet);
    *op = wm_op_ended();
    return code;
}

static void
tell_route(const wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes)
{
    wm_route_t route;
    wm_route_end_t about = {
        .rank = comm->rank,
        .peer = envelope->rank,
        .tag = envelope->tag,
        .nbytes = nbytes,
    };
    wm_route_begin(&route);
    wm_route_message(&route, &about, wm_sending_inline.name);
}

int
wm_inline_send(wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err)
{
    MPI_Request request;
    int sent = 0;
    int code = wm_engine_check(err);
    if (code == 0)
        code = wm_comm_check(comm, "dest", envelope->rank, envelope->tag,
                             false, err);
    char *packet = code == 0 ? wm_packet_get() : NULL;
    if (code == 0 && packet == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0) {
        uint32_t order = wm_comm_order(comm, envelope->rank);
        int length = (int)pack(buffer, order, packet);
        code = wm_mpi_check(MPI_Isend(packet, length, MPI_BYTE, envelope->rank,
                                      envelope->tag, comm->match, &request),
                            "MPI_Isend", err);
    }
    if (code == 0) // the first error if the peer is dead
        code = wm_mpi_check(MPI_Test(&request, &sent, MPI_STATUS_IGNORE),
                            "MPI_Test", err);
    if (code == 0 && !sent) {
        code = inline_follow(comm, envelope, buffer->nbytes, request, packet,
                             op, err);
        packet = NULL;
    }
    else if (code == 0)
        *op = wm_op_ended();
    if (packet != NULL)
        wm_packet_put(packet);
    if (code < 0)
        return code;
    if (sent)
        wm_engine_visit();
    else
        wm_engine_notify();
    wm_stat_add(WM_STAT_sent_messages, 1);
    wm_stat_add(WM_STAT_sent_bytes, (int64_t)buffer->nbytes);
    if (wm_route_is_wanted())
        tell_route(comm, envelope, buffer->nbytes);
    return 0;
}

// --- the sender, with an end ----------------------------------------------

static bool
inline_try_take(wm_end_t *end, const char **why)
{
    bool device = wm_buffer_on_device(&end->buffer);
    *why = device ? "GPU memory" : "longer than 4 KiB";
    return end->buffer.nbytes == 0
           || (!device && end->buffer.nbytes <= WM_EAGER_BYTES);
}

static int
inline_offer(wm_end_t *end, wm_error_t *err)
{
    (void)err;
    end->header.kind = WM_MESSAGE_EAGER;
    return 0;
}

const wm_sending_t wm_sending_inline = {
    .name = "inline",
    .try_take = inline_try_take,
    .offer = inline_offer,
};

// --- the receiver --------------------------------------------------------

static bool
inline_check(wm_end_t *end)
{
    return end->header.nbytes <= WM_EAGER_BYTES;
}

// Copies the payload into the buffer. Returns 1 when it is there, 0 if not
// yet.
static int
inline_match(wm_end_t *end, bool refused, wm_error_t *err)
{
    size_t length = end->header.nbytes;
    const char *payload = end->packet + wm_header_length(&end->header);
    if (refused)
        return 1;
    int code = end->buffer.pattern != NULL ? wm_unpack_reserve(end, false, err)
                                           : 0;
    if (code < 0)
        return code;
    if (!wm_buffer_on_device(&end->buffer)) {
        if (length > 0)
            memcpy(end->buffer.data, payload, length);
        wm_link_count(&wm_link_mpi, length, false);
        return 1;
    }
    if (length == 0)
        return 1;
    code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_memory_copy(end->access.device, end->buffer.data, payload,
                              length, end->access.stream, err);
    wm_link_count(&wm_link_host, length, true);
    return code;
}

static int
inline_look(wm_end_t *end, wm_error_t *err)
{
    return wm_access_look(&end->access, 16, err);
}

static bool
inline_fail(wm_end_t *end, const wm_error_t *err)
{
    (void)err;
    if (end->access.opened)
        (void)!wm_access_synchronize(&end->access, NULL);
    return false;
}

const wm_receiving_t wm_receiving_inline = {
    .name = "inline",
    .kind = WM_MESSAGE_EAGER,
    .check = inline_check,
    .match = inline_match,
    .step = inline_look,
    .fail = inline_fail,
};
