// SPDX-License-Identifier: BSD-3-Clause
#include "comm/inline.h"

#include <string.h>

#include "comm/check.h"
#include "comm/failure.h"
#include "comm/progress.h"
#include "comm/stats.h"
#include "comm/trail.h"

// Of all messages that ended as they began; its first reference is nobody's.
static wm_op_t ended = {
    .done = WM_DONE_TOLD,
    .news = 1,
    .references = 1,
    .slot_index = -1,
    .lane = -1,
    .user_device = -1,
};

wm_op_t *
wm_op_ended(void)
{
    wm_op_retain(&ended);
    return &ended;
}

bool
wm_op_is_ended(const wm_op_t *op)
{
    return op == &ended;
}

bool
wm_inline_fits(const wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope)
{
    return !envelope->buffered && !atomic_load(&comm->is_late)
           && buffer->nbytes <= WM_EAGER_BYTES && !wm_buffer_on_device(buffer)
           && buffer->pattern == NULL
           && buffer->producer.kind == WM_PRODUCER_NONE && envelope->rank >= 0
           && !envelope->synchronous && envelope->stream_device < 0
           && !wm_check_wanted(); // which lists operations
}

static size_t
pack(const wm_buffer_t *buffer, uint32_t order, char *packet)
{
    wm_header_t header;
    memset(&header, 0, WM_HEADER_SHORT);
    header.magic = WM_HEADER_MAGIC;
    header.kind = WM_MESSAGE_EAGER;
    header.nbytes = buffer->nbytes;
    header.order = order;
    header.pickled = buffer->pickled;
    header.element = buffer->nbytes > 0 ? buffer->element : 0;
    memcpy(packet, &header, WM_HEADER_SHORT);
    if (buffer->nbytes > 0)
        memcpy(packet + WM_HEADER_SHORT, buffer->data, buffer->nbytes);
    return WM_HEADER_SHORT + buffer->nbytes;
}

// Sees the packet to its end. That an earlier one met a dead rank is told by
// the next.
static int
follow(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes,
       MPI_Request request, char *packet, wm_op_t **op, wm_error_t *err)
{
    int code = 0;
    *op = NULL;
    wm_engine_lock();
    // MPI may have yet to send it.
    if (wm_engine_is_threaded()
        && wm_trail_add(comm, envelope, nbytes, request, packet)) {
        if (comm->peers[envelope->rank]->dead)
            code = wm_failure_look(comm, envelope->rank, err);
        if (code == 0)
            *op = wm_op_ended();
    }
    else if ((*op = wm_op_of_request(comm, request)) != NULL) {
        (*op)->rank = envelope->rank;
        (*op)->tag = envelope->tag;
        (*op)->peer = comm->peers[envelope->rank];
        (*op)->packet = packet;
    }
    wm_engine_unlock();
    if (code < 0 || *op != NULL)
        return code;
    code = wm_mpi_check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait",
                        err); // there was no memory
    wm_packet_give(packet);
    *op = wm_op_ended();
    return code;
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
    char *packet = code == 0 ? wm_packet_take() : NULL;
    if (code == 0 && packet == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0) {
        uint32_t order = wm_comm_order(comm, envelope->rank);
        int length = (int)pack(buffer, order, packet);
        code = wm_mpi_check(MPI_Isend(packet, length, MPI_BYTE, envelope->rank,
                                      envelope->tag, comm->match, &request),
                            "MPI_Isend", err);
    }
    if (code == 0) // an error of MPI's may come no sooner: the peer is dead
        code = wm_mpi_check(MPI_Test(&request, &sent, MPI_STATUS_IGNORE),
                            "MPI_Test", err);
    if (code == 0 && !sent) {
        code = follow(comm, envelope, buffer->nbytes, request, packet, op,
                      err);
        packet = NULL;
    }
    else if (code == 0)
        *op = wm_op_ended();
    if (packet != NULL)
        wm_packet_give(packet);
    if (code < 0)
        return code;
    if (sent)
        wm_engine_visit();
    else
        wm_engine_notify();
    wm_stat_add(WM_STAT_sent_messages, 1);
    wm_stat_add(WM_STAT_sent_bytes, (int64_t)buffer->nbytes);
    return 0;
}
