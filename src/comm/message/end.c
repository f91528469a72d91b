// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/end.h"

#include <stdio.h>

#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/engine/stats.h"
#include "comm/message/pack.h"
#include "comm/message/protocol.h"
#include "comm/node/mapping.h"
#include "comm/node/slot.h"
#include "cuda/memory.h"
#include "cuda/word.h"

#define BORROW_BYTES 1048576

int
wm_end_new(const wm_op_kind_t *kind, wm_comm_t *comm, wm_buffer_t *buffer,
           const wm_envelope_t *envelope, bool receives, wm_end_t **result,
           wm_error_t *err)
{
    int code = wm_engine_check(err);
    if (code == 0)
        code = wm_comm_check(comm, receives ? "source" : "dest",
                             envelope->rank, envelope->tag, receives, err);
    wm_end_t *end = code == 0 ? wm_op_new(kind, sizeof *end, comm) : NULL;
    if (code == 0 && end == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    end->receives = receives;
    end->rank = envelope->rank;
    end->tag = envelope->tag;
    end->synchronous = envelope->synchronous;
    end->blocking = envelope->blocking;
    end->more = envelope->more;
    end->paired = envelope->paired;
    end->eager = envelope->eager;
    end->buffer = *buffer;
    // Any GPU reads managed memory that is on no GPU now.
    bool device = wm_buffer_on_device(buffer) && buffer->memory.device >= 0;
    wm_access_begin(&end->access, &buffer->producer, receives,
                    device ? buffer->memory.device : 0);
    if (envelope->stream_device >= 0 && envelope->rank != MPI_PROC_NULL)
        wm_access_name_stream(&end->access, envelope->stream_device,
                              envelope->stream);
    end->slot_index = -1;
    end->matching = MPI_REQUEST_NULL;
    end->op.result.received = receives;
    end->op.result.source = envelope->rank;
    end->op.result.tag = envelope->tag;
    if (envelope->rank == MPI_PROC_NULL) {
        end->op.result.tag = MPI_ANY_TAG;
        atomic_store(&end->op.done, WM_DONE_TOLD);
    }
    else if (envelope->rank >= 0)
        end->peer = comm->peers[envelope->rank];
    *result = end;
    return 0;
}

int
wm_await_producer(const wm_buffer_t *buffer, wm_producer_t *producer,
                  const wm_envelope_t *envelope, bool to_write,
                  wm_error_t *err)
{
    bool device = wm_buffer_on_device(buffer);
    int code = 0;
    if (envelope->stream_device >= 0 && !envelope->uncaptured)
        code = wm_stream_refuse_capture(envelope->stream_device,
                                        envelope->stream, "the stream", err);
    if (code == 0)
        code = wm_producer_refuse_capture(producer, err);
    if (code == 0 && envelope->stream_device >= 0 && !device)
        code = wm_stream_synchronize(envelope->stream_device, envelope->stream,
                                     err);
    if (code < 0)
        return code;
    if (envelope->stream_device >= 0 && producer->kind == WM_PRODUCER_DEVICE)
        producer->kind = producer->order == NULL
                             ? WM_PRODUCER_NONE // the stream was named
                             : WM_PRODUCER_ORDER;
    bool unnamed = producer->kind == WM_PRODUCER_DEVICE;
    if (producer->kind == WM_PRODUCER_NONE || (!unnamed && device))
        return 0;
    wm_stat_add(WM_STAT_device_synchronizations, unnamed);
    code = wm_producer_wait(producer, to_write, err);
    producer->kind = WM_PRODUCER_NONE;
    return code;
}

uint64_t
wm_end_fitting_bytes(const wm_end_t *end)
{
    return end->header.nbytes < end->buffer.nbytes ? end->header.nbytes
                                                   : end->buffer.nbytes;
}

int
wm_end_packet(wm_end_t *end, bool pinned, wm_error_t *err)
{
    int code = 0;
    if (pinned)
        code = wm_pinned_alloc(WM_PACKET_ROOM, (void **)&end->packet, err);
    else if ((end->packet = wm_packet_get()) == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    end->packet_pinned = pinned && code == 0;
    return code;
}

bool
wm_end_borrows(const wm_end_t *end)
{
    return end->buffer.nbytes <= BORROW_BYTES
           && (end->blocking || !end->receives)
           && wm_access_may_borrow(&end->access);
}

int
wm_end_open_stream(wm_end_t *end, wm_error_t *err)
{
    if (end->access.opened)
        return 0;
    if (!wm_end_borrows(end))
        return wm_access_open(&end->access, err);
    wm_access_borrow(&end->access);
    return 0;
}

int
wm_end_leave_stream(wm_end_t *end, wm_error_t *err)
{
    const wm_access_t *access = &end->access;
    int code = 0;
    if (end->buffer.order != NULL)
        code = wm_order_after(
            end->buffer.order, NULL, access->user_device, access->user_stream,
            wm_stream_id(access->user_device, access->user_stream), NULL, err);
    if (code == 0)
        wm_op_complete(&end->op);
    return code;
}

void
wm_end_route(const wm_end_t *end, const wm_route_t *route, const char *row)
{
    if (!route->wanted)
        return;
    char name[64];
    const wm_result_t *result = &end->op.result;
    wm_route_end_t about = {
        .receives = end->receives,
        .rank = end->op.comm->rank,
        .peer = end->receives ? result->source : end->rank,
        .tag = end->receives ? result->tag : end->tag,
        .nbytes = end->header.nbytes,
    };
    bool wrapped = end->around != NULL;
    snprintf(name, sizeof name, "%s%s%s", wrapped ? end->around->name : "",
             wrapped ? ", " : "", row);
    wm_route_message(route, &about, name);
}

// Releases what the rows have, and then what they share.
static void
drop_rows(wm_end_t *end)
{
    const wm_sending_t *sending = end->sending, *taker = end->taker;
    const wm_receiving_t *receiving = end->receiving;
    if (receiving != NULL && receiving->drop != NULL)
        receiving->drop(end);
    if (taker != NULL && taker->drop != NULL)
        taker->drop(end);
    if (sending != taker && sending != NULL && sending->drop != NULL)
        sending->drop(end);
    if (end->mapping != NULL)
        wm_mapping_release(end->mapping);
    end->mapping = NULL;
    // A slot leaks if a stream of ours may still write it.
    if (end->slot_index >= 0 && wm_end_is_quiet(end))
        wm_slot_release(end->slot_index);
    end->slot_index = -1;
    end->slot = NULL;
}

void
wm_end_drop(wm_end_t *end)
{
    wm_pack_drop(end);
    wm_access_close(&end->access);
    if (end->event != NULL)
        wm_event_release(end->access.user_device, end->event);
    end->event = NULL;
    drop_rows(end);
}

bool
wm_end_is_quiet(const wm_end_t *end)
{
    const wm_fragments_t *fragments = &end->fragments;
    return end->slot != NULL
           && wm_word_reached(&end->slot->ready,
                              fragments->ready_base + fragments->next);
}

wm_asks_t
wm_end_asks(const wm_op_t *op)
{
    const wm_end_t *end = (const wm_end_t *)op;
    if (end->sending != NULL && end->sending->asks != NULL)
        return end->sending->asks(end);
    if (end->receiving != NULL && end->receiving->asks != NULL)
        return end->receiving->asks(end);
    if (end->matching == MPI_REQUEST_NULL)
        return WM_ASKS_NOTHING;
    return end->slot == NULL ? WM_ASKS_ALONE : WM_ASKS_TOO;
}

// Returns a number that changes when the rows make progress.
static uint64_t
mark_of_rows(const wm_end_t *end)
{
    const wm_slot_t *slot = end->slot;
    const uint64_t parts[] = {
        (uint64_t)end->state,
        (uintptr_t)end->sending,
        (uintptr_t)end->receiving,
        end->fragments.next,
        end->header.magic,
        slot != NULL ? atomic_load(&slot->ready) : 0,
        slot != NULL ? atomic_load(&slot->taken) : 0,
        end->buffer.pattern != NULL ? wm_unpack_mark(end) : 0,
    };
    uint64_t mark = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
        mark = wm_hash(mark, parts[i]);
    if (end->sending != NULL && end->sending->mark != NULL)
        mark = wm_hash(mark, end->sending->mark(end));
    if (end->receiving != NULL && end->receiving->mark != NULL)
        mark = wm_hash(mark, end->receiving->mark(end));
    return mark;
}

void
wm_end_about(const wm_op_t *op, wm_about_t *about)
{
    const wm_end_t *end = (const wm_end_t *)op;
    *about = (wm_about_t){
        .is_message = true,
        .receives = end->receives,
        .matched = end->header.magic != 0,
        .rank = end->rank,
        .tag = end->tag,
        .sized = !end->buffer.grows,
        .nbytes = end->buffer.nbytes,
        .peer = end->peer,
        .mark = mark_of_rows(end),
    };
}

wm_buffer_t *
wm_end_buffer(wm_op_t *op)
{
    return &((wm_end_t *)op)->buffer;
}

void
wm_end_synchronize(wm_op_t *op)
{
    wm_end_t *end = (wm_end_t *)op;
    if (end->receiving != NULL && end->receiving->synchronize != NULL)
        end->receiving->synchronize(end);
}

void
wm_end_free(wm_op_t *op)
{
    wm_end_t *end = (wm_end_t *)op;
    wm_pack_drop(end);
    wm_access_close(&end->access);
    if (end->packet_pinned)
        wm_pinned_free(end->packet);
    else if (end->packet != NULL)
        wm_packet_put(end->packet);
}
