// SPDX-License-Identifier: BSD-3-Clause
// A receive on the user's stream: the stream waits for `ready`, copies, or
// fetches a device eager message, and writes `taken`. The call ends when this
// work is enqueued.
#include "array/eager_ll.h"
#include "comm/message/pack.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/take.h"
#include "cuda/word.h"

// Returns true if the message is sure to come. Before that the user's stream
// must not wait for it, as the sender may fail.
static bool
is_posted(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->posted, end->fragments.ready_base + 1);
}

// Ends the call: the user's stream has the work that takes the data.
static int
submitted(wm_end_t *end, wm_error_t *err)
{
    // An event of ours, as the user may destroy the stream.
    int code = wm_event_record(end->access.user_device, end->event,
                               end->access.user_stream, err);
    if (code == 0 && end->buffer.order != NULL)
        code = wm_order_after_write(end->buffer.order, end->access.user_device,
                                    end->access.user_stream, err);
    if (code < 0)
        return code;
    end->recorded = true;
    wm_slot_set_submitted(end->slot, end->fragments.taken_base + 1);
    wm_op_complete(&end->op);
    return 0;
}

static void
fetch_launched(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL)
        wm_fragments_launched(end, failure);
    else if ((!wm_unpack_is_direct(end)
              && wm_unpack_enqueue(end, end->buffer.data,
                                   end->access.user_device,
                                   end->access.user_stream, &err)
                     < 0)
             || submitted(end, &err) < 0)
        wm_fragments_launched(end, &err);
}

static int
copy_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    int code = wm_word_wait(device, stream, &end->slot->ready,
                            end->fragments.ready_base + 1, err);
    bool direct = wm_unpack_is_direct(end);
    const char *from = direct ? end->fragments.remote : end->buffer.data;
    if (code == 0 && !direct)
        code = wm_memory_copy(device, end->buffer.data, end->fragments.remote,
                              end->header.nbytes, stream, err);
    if (code == 0)
        code = wm_unpack_enqueue(end, from, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_taken(end->slot, device, stream,
                                     end->fragments.taken_base + 1, err);
    return code < 0 ? code : submitted(end, err);
}

// Enqueues the work that takes the fragment on the user's stream; does not
// wait.
static int
pull_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    atomic_store(wm_fragments_status(end), 0);
    end->on_stream = true;
    end->fragments.next = 1;
    int code = wm_event_acquire(device, &end->event, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, device, err);
    if (code == 0)
        code = wm_producer_before(&end->access.producer, true, device,
                                  end->access.user_stream, err);
    if (code == 0)
        code = wm_device_eager_is_used(end)
                   ? wm_device_eager_fetch_on_stream(end, fetch_launched, err)
                   : copy_on_stream(end, err);
    return code;
}

static int
has_ended(wm_end_t *end, wm_error_t *err)
{
    if (atomic_load(wm_fragments_status(end)) == WM_EAGER_LL_FAILED) {
        *err = end->op.error;
        return err->code;
    }
    return wm_fragments_are_taken(end)
               ? 1
               : wm_fragments_look_for_errors(end, err);
}

static int
streamed_step(wm_end_t *end, wm_error_t *err)
{
    if (end->on_stream)
        return wm_take_watch(end, has_ended(end, err), err);
    if (!is_posted(end))
        return wm_take_watch(end, 0, err);
    return pull_on_stream(end, err); // the next step reports a failure
}

const wm_receiving_t wm_receiving_stream = {
    .name = "stream",
    .step = streamed_step,
    .fail = wm_take_fail,
    .peer_died = wm_take_peer_died,
};
