// SPDX-License-Identifier: BSD-3-Clause
#include "comm/eager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mapping.h"
#include "comm/offer.h"
#include "comm/progress.h"
#include "comm/stats.h"
#include "cuda/word.h"

#define DEFAULT_LIMIT 65536
#define PATIENCE_US 10              // a receiver that waits claims in less
#define PATIENCE_WITH_PARTS_US 1000 // one that unpickles and allocates, too

static size_t limit = DEFAULT_LIMIT;

int
wm_eager_configure(wm_error_t *err)
{
    const char *text = getenv("WARPMPI_EAGER_LIMIT");
    char *end;
    limit = DEFAULT_LIMIT;
    if (text == NULL || *text == '\0')
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || strspn(text, "0123456789") == 0)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "WARPMPI_EAGER_LIMIT=%s is no number of bytes: "
                            "unset it (%d), or set it to 0 or more",
                            text, DEFAULT_LIMIT);
    limit = (size_t)value;
    return 0;
}

// The caller goes on, and nobody may be in our code until the receiver comes:
// the progress thread must not sleep for good.
static void
let_go(wm_op_t *op)
{
    wm_op_complete(op);
    wm_engine_notify();
}

// What was handed off is a copy already: of all of it once it has been fed.
static void
end_handed_off(wm_op_t *op)
{
    const wm_pieces_t *pieces = &op->pieces;
    if (pieces->next < pieces->pieces
        || !wm_word_reached(&op->slot->ready,
                            pieces->ready_base + pieces->next))
        return;
    if (op->handoff != NULL) // should the host come to serve after all
        op->buffer.data = wm_block_pointer(op->handoff);
    let_go(op);
}

// Where there is no memory for it, or anything else fails, the sender waits:
// a receiver may take the buffer itself this very moment.
static void
begin_copy(wm_op_t *op)
{
    int device = op->device;
    op->unmoved = true;
    if (wm_block_alloc(device, op->buffer.nbytes, &op->copy, NULL) == 0
        && wm_stream_acquire(device, &op->copying, NULL) == 0
        && wm_producer_before(&op->buffer.producer, false, device, op->copying,
                              NULL)
               == 0
        && wm_memory_copy(device, wm_block_pointer(op->copy), op->buffer.data,
                          op->buffer.nbytes, op->copying, NULL)
               == 0)
        op->unmoved = false;
}

// The copy is there: the offer means it from now on, unless it was claimed.
static void
publish(wm_op_t *op)
{
    wm_pointer_t memory;
    wm_place_t place;
    op->unmoved = true;
    wm_block_describe(op->copy, &memory);
    const char *copy = wm_block_pointer(op->copy);
    if (op->header.stage_only != WM_STAGE_NOT || op->peer->self)
        wm_place_set(copy, &memory, &place);
    else if (wm_place_export(copy, &memory, &place, NULL) < 0)
        return;
    if (!wm_slot_move(op->slot, &place))
        return;
    op->buffer.data = wm_block_pointer(op->copy);
    op->buffer.memory = memory;
    op->buffer.producer = (wm_producer_t){0};
    op->buffer.order = NULL;
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)op->header.nbytes);
    let_go(op);
}

// What was packed is a copy as well, and all there before it is ready.
static void
end_packed(wm_op_t *op)
{
    if (op->pieces.next == 0
        || !wm_word_reached(&op->slot->ready, op->pieces.ready_base + 1))
        return;
    op->opened = op->pooled; // a borrowed stream may be gone from now on
    let_go(op);
}

static void
step_copy(wm_op_t *op)
{
    bool ended;
    if (op->unmoved || atomic_load(&op->slot->claim) != WM_CLAIM_NONE)
        return;
    if (op->copy == NULL) {
        int64_t now = wm_engine_now();
        if (op->since == 0)
            op->since = now;
        if (now - op->since
            >= (op->eager ? PATIENCE_WITH_PARTS_US : PATIENCE_US))
            begin_copy(op);
    }
    else if (wm_stream_spin(op->device, op->copying, 1, &ended, NULL) < 0)
        op->unmoved = true;
    else if (ended) {
        wm_stream_release_idle(op->device, op->copying);
        op->copying = NULL;
        publish(op);
    }
}

void
wm_eager_step(wm_op_t *op)
{
    if (!op->blocking || op->synchronous || op->user_device >= 0
        || atomic_load(&op->done) || (op->buffer.nbytes > limit && !op->eager)
        || atomic_load(&op->slot->answer) != WM_ANSWER_NONE)
        return;
    if (wm_offer_hands_off(op))
        end_handed_off(op);
    else if (op->packed != NULL)
        end_packed(op);
    else
        step_copy(op);
}

void
wm_eager_claim(wm_op_t *op)
{
    if (wm_slot_claim(op->slot, &op->header.place))
        op->header.pushes = 0; // its sender has gone on
}

void
wm_eager_drop(wm_op_t *op)
{
    CUevent event;
    int device = op->device, count = 0;
    if (op->copy == NULL)
        return;
    if (op->copying != NULL && wm_event_acquire(device, &event, NULL) == 0) {
        count = 1;
        if (wm_event_record(device, event, op->copying, NULL) < 0) {
            wm_event_release(device, event);
            count = 0;
        }
    }
    // What cannot be remembered is waited for.
    if (op->copying != NULL && count == 0)
        (void)!wm_stream_synchronize(device, op->copying, NULL);
    wm_block_free(op->copy, count, &event, &device);
    if (op->copying != NULL)
        wm_stream_release(device, op->copying);
    op->copy = NULL;
    op->copying = NULL;
}
