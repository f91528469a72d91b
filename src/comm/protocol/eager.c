// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/eager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/protocol.h"
#include "comm/protocol/fragments.h"

#define DEFAULT_LIMIT 65536
#define PATIENCE_US 10              // a waiting receiver claims sooner
#define PATIENCE_WITH_PARTS_US 1000 // one that unpickles and allocates, too

static size_t limit = DEFAULT_LIMIT;

int
wm_eager_configure(wm_error_t *err)
{
    const char *text = getenv("WARPMPI_EAGER_LIMIT");
    char *rest;
    limit = DEFAULT_LIMIT;
    if (text == NULL || *text == '\0')
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (errno != 0 || *rest != '\0' || strspn(text, "0123456789") == 0)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "WARPMPI_EAGER_LIMIT=%s is not a number of bytes: unset it (the "
            "default is %d), or set it to 0 or more",
            text, DEFAULT_LIMIT);
    limit = (size_t)value;
    return 0;
}

// Lets the caller go on. Nobody may be in our code until the receiver comes,
// so the progress thread must not sleep without an end.
static void
eager_report(wm_end_t *end)
{
    wm_op_complete(&end->op);
    wm_engine_notify();
}

// Handed-off data are a copy already, complete when all fragments are fed.
void
wm_eager_report_handed_off(wm_end_t *end)
{
    const wm_fragments_t *fragments = &end->fragments;
    if (fragments->next < fragments->count
        || !wm_fragments_begun_are_ready(end))
        return;
    if (end->handoff != NULL) // for the case that the host serves
        end->buffer.data = wm_block_pointer(end->handoff);
    eager_report(end);
}

// Begins the copy. If there is no memory, or anything fails, the sender waits:
// a receiver may be taking the buffer at this moment.
static void
begin_copy(wm_end_t *end)
{
    int device = end->access.device;
    end->copy.unmoved = true;
    if (wm_block_alloc(device, end->buffer.nbytes, &end->copy.block, NULL) == 0
        && wm_stream_acquire(device, &end->copy.stream, NULL) == 0
        && wm_producer_before(&end->access.producer, false, device,
                              end->copy.stream, NULL)
               == 0
        && wm_memory_copy(device, wm_block_pointer(end->copy.block),
                          end->buffer.data, end->buffer.nbytes,
                          end->copy.stream, NULL)
               == 0)
        end->copy.unmoved = false;
}

// Moves the offer to the finished copy, unless it was claimed.
static void
publish(wm_end_t *end)
{
    wm_pointer_t memory;
    wm_place_t place;
    end->copy.unmoved = true;
    wm_block_describe(end->copy.block, &memory);
    const char *copy = wm_block_pointer(end->copy.block);
    if (end->header.stage_only != WM_STAGE_NOT || end->peer->self)
        wm_place_set(copy, &memory, &place);
    else if (wm_place_export(copy, &memory, &place, NULL) < 0)
        return;
    if (!wm_slot_move(end->slot, &place))
        return;
    end->buffer.data = wm_block_pointer(end->copy.block);
    end->buffer.memory = memory;
    end->access.producer = (wm_producer_t){0};
    end->buffer.order = NULL;
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)end->header.nbytes);
    eager_report(end);
}

// Lets the caller go on when all is packed, which is a copy as well.
static void
end_packed(wm_end_t *end)
{
    if (end->fragments.next == 0 || !wm_fragment_is_ready(end, 0))
        return;
    // The stream may be gone after this.
    wm_access_forget_borrowed(&end->access);
    eager_report(end);
}

static void
step_copy(wm_end_t *end)
{
    bool ended;
    if (end->copy.unmoved || atomic_load(&end->slot->claim) != WM_CLAIM_NONE)
        return;
    if (end->copy.block == NULL) {
        int64_t now = wm_engine_now();
        if (end->copy.since == 0)
            end->copy.since = now;
        if (now - end->copy.since
            >= (end->eager ? PATIENCE_WITH_PARTS_US : PATIENCE_US))
            begin_copy(end);
    }
    else if (wm_stream_spin(end->access.device, end->copy.stream, 1, &ended,
                            NULL)
             < 0)
        end->copy.unmoved = true;
    else if (ended) {
        wm_stream_release_idle(end->access.device, end->copy.stream);
        end->copy.stream = NULL;
        publish(end);
    }
}

void
wm_eager_step(wm_end_t *end)
{
    if (!end->blocking || end->synchronous || end->access.user_device >= 0
        || atomic_load(&end->op.done)
        || (end->buffer.nbytes > limit && !end->eager)
        || atomic_load(&end->slot->answer) != WM_ANSWER_NONE
        || end->sending->report_early == NULL)
        return;
    end->sending->report_early(end);
}

void
wm_eager_report_copied(wm_end_t *end)
{
    if (end->gaps.block != NULL)
        end_packed(end);
    else
        step_copy(end);
}

void
wm_eager_claim(wm_end_t *end)
{
    if (wm_slot_claim(end->slot, &end->header.place))
        end->header.pushes = 0; // its sender has gone on
}

void
wm_eager_drop(wm_end_t *end)
{
    CUevent event;
    int device = end->access.device, count = 0;
    if (end->copy.block == NULL)
        return;
    if (end->copy.stream != NULL
        && wm_event_acquire(device, &event, NULL) == 0) {
        count = 1;
        if (wm_event_record(device, event, end->copy.stream, NULL) < 0) {
            wm_event_release(device, event);
            count = 0;
        }
    }
    // Without an event, we wait.
    if (end->copy.stream != NULL && count == 0)
        (void)!wm_stream_synchronize(device, end->copy.stream, NULL);
    wm_block_free(end->copy.block, count, &event, &device);
    if (end->copy.stream != NULL)
        wm_stream_release(device, end->copy.stream);
    end->copy.block = NULL;
    end->copy.stream = NULL;
}
