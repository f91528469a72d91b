// SPDX-License-Identifier: BSD-3-Clause
#include "comm/push.h"

#include "comm/mapping.h"
#include "comm/pieces.h"
#include "comm/progress.h"
#include "comm/stats.h"
#include "comm/transport.h"
#include "cuda/word.h"

// Both ways: below it the question takes longer than it gains.
#define BOTH_WAYS_BYTES ((uint64_t)4 << 20)
#define PATIENCE_US 1000 // a sender that waits begins in less

static bool
is_worth_it(const wm_op_t *op)
{
    if (wm_pieces_on_same_gpu(op))
        return op->peer->copied;
    return op->header.nbytes >= BOTH_WAYS_BYTES
           && wm_engine_is_sending(op->peer, BOTH_WAYS_BYTES);
}

// Whether nobody uses the buffer any more: the sender could not wait for them.
static bool
is_free(wm_op_t *op)
{
    wm_producer_t *producer = &op->buffer.producer;
    bool idle = producer->kind == WM_PRODUCER_NONE;
    if (op->after[0].event == NULL)
        return idle
               || (wm_producer_idle(producer, true, &idle, NULL) == 0 && idle);
    if (wm_event_done(op->after[0].device, op->after[0].event, &idle, NULL)
            == 0
        && idle)
        wm_op_note_ended(op);
    return idle;
}

bool
wm_push_ask(wm_op_t *op)
{
    const wm_pointer_t *memory = &op->buffer.memory;
    wm_slot_t *slot = op->slot;
    wm_place_t into;
    if (!op->header.pushes || op->peer->push_refused
        || op->transport != &wm_transport_ipc || op->user_device >= 0
        || op->buffer.pattern != NULL || !memory->exportable
        || atomic_load(&slot->push) != WM_PUSH_NOT || !is_worth_it(op)
        || !is_free(op)
        || wm_place_export(op->buffer.data, memory, &into, NULL) < 0)
        return false;
    op->since = 0;
    wm_slot_ask_push(slot, &into);
    return true;
}

bool
wm_push_withdraw(wm_op_t *op)
{
    return wm_slot_withdraw_push(op->slot);
}

// Whether the sender could have begun long ago: it has left our code, as an
// interrupted one does.
static bool
is_late(wm_op_t *op)
{
    if (!wm_word_reached(&op->slot->ready, op->header.ready_base + 1))
        return false;
    int64_t now = wm_engine_now();
    if (op->since == 0)
        op->since = now;
    return now - op->since > PATIENCE_US;
}

int
wm_push_ended(wm_op_t *op)
{
    wm_slot_t *slot = op->slot;
    switch (atomic_load(&slot->push)) {
    case WM_PUSH_ENDED:
        op->transport->count(op);
        wm_stat_add(WM_STAT_pushed_messages, 1);
        op->peer->copied = true;
        wm_slot_set_taken(slot, op->header.taken_base + op->header.pieces);
        return 1;
    case WM_PUSH_ASKED:
        return is_late(op) && wm_push_withdraw(op) ? -1 : 0;
    case WM_PUSH_REFUSED:
        op->peer->push_refused = true;
        return -1;
    case WM_PUSH_WITHDRAWN:
        return -1;
    default:
        return 0;
    }
}

// What the copy needs; where it is not to be had, the receiver copies.
static bool
prepare(wm_op_t *op, const wm_place_t *into)
{
    if (!wm_place_holds(into, op->header.nbytes)) {
        wm_slot_refuse_push(op->slot, true);
        return false;
    }
    wm_error_t err;
    int code = wm_mapping_open(op->peer, into, op->device, &op->mapping, &err);
    if (code < 0) {
        bool now = code == WM_ERR_MEMORY
                   || err.detail == CUDA_ERROR_ALREADY_MAPPED;
        wm_slot_refuse_push(op->slot, !now);
        return false;
    }
    op->settled = true;      // those who wrote the buffer wrote `ready`
    op->opened = op->pooled; // a borrowed stream may be gone, or wait
    if (wm_node_register(wm_node_self(), false, op->device, NULL) == 0
        && wm_op_open_stream(op, NULL) == 0)
        return true;
    wm_slot_refuse_push(op->slot, false);
    return false;
}

int
wm_push_serve(wm_op_t *op, wm_error_t *err)
{
    wm_slot_t *slot = op->slot;
    if (atomic_load(&slot->push) != WM_PUSH_ASKED
        || !wm_word_reached(&slot->ready, op->pieces.ready_base + 1)
        || !wm_slot_accept_push(slot))
        return 0;
    wm_place_t into = slot->into;
    if (!prepare(op, &into))
        return 0;
    op->idle = false;
    int code = wm_memory_copy(op->device, wm_mapping_at(op->mapping, &into),
                              op->buffer.data, op->header.nbytes, op->stream,
                              err);
    if (code == 0)
        code = wm_slot_enqueue_pushed(slot, op->device, op->stream, err);
    return code < 0 ? code : 1;
}

void
wm_push_note(wm_op_t *op, bool pushed)
{
    op->idle |= pushed;
    op->peer->copied = !pushed;
}
