// SPDX-License-Identifier: BSD-3-Clause
// A receive on the user's stream: the stream waits for `ready`, copies, or
// fetches a device eager message, and writes `taken`. The call ends when this
// work is enqueued and the message is posted.
#include "array/eager_ll.h"
#include "comm/message/pack.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/take.h"
#include "cuda/word.h"

// True if the stream has the work that takes the message.
WM_STATE(bool, is_submitted, second_state)

// Returns true if the message is sure to come. Before that the user's stream
// gets only a kernel that ends if the sender fails (`promised`), and the call
// does not end.
static bool
is_posted(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->posted, end->fragments.ready_base + 1);
}

// Ends the call: the user's stream has the work that takes the data.
static void
streamed_complete(wm_end_t *end)
{
    wm_slot_set_submitted(end->slot, end->fragments.taken_base + 1);
    wm_op_complete(&end->op);
}

// Notes the end of the work on the user's stream.
static int
streamed_submitted(wm_end_t *end, wm_error_t *err)
{
    // An event of ours, as the user may destroy the stream.
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    int code = wm_event_record(device, end->event, stream, err);
    if (code == 0 && end->buffer.order != NULL)
        code = wm_order_after(NULL, end->buffer.order, device, stream,
                              wm_stream_id(device, stream), end->event, err);
    if (code < 0)
        return code;
    end->recorded = true;
    if (is_posted(end))
        streamed_complete(end);
    return 0;
}

static void
fetch_launched(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL)
        wm_fragments_launched(end, failure);
    else if ((end->buffer.pattern != NULL && !end->unpacks
              && wm_unpack_enqueue(end, end->buffer.data,
                                   end->access.user_device,
                                   end->access.user_stream, &err)
                     < 0)
             || streamed_submitted(end, &err) < 0)
        wm_fragments_launched(end, &err);
}

static int
copy_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    int code = wm_word_wait(device, stream, &end->slot->ready,
                            end->fragments.ready_base + 1, err);
    const char *from = end->unpacks ? end->fragments.remote : end->buffer.data;
    if (code == 0 && !end->unpacks)
        code = wm_memory_copy(device, end->buffer.data, end->fragments.remote,
                              end->header.nbytes, stream, err);
    if (code == 0 && end->buffer.pattern != NULL)
        code = wm_unpack_enqueue(end, from, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_taken(end->slot, device, stream,
                                     end->fragments.taken_base + 1, err);
    return code < 0 ? code : streamed_submitted(end, err);
}

// Returns true if a kernel that waits for the message itself can take it, and
// the stream need not wait for anything else.
static bool
is_fetched_at_once(const wm_end_t *end)
{
    return end->header.flag != 0 && wm_device_eager_waits(end)
           && wm_producer_is_on(&end->access.producer, true,
                                end->access.user_device,
                                end->access.user_stream);
}

// Enqueues the work that takes the fragment on the user's stream; does not
// wait. A held send of the same call shares the kernel; else the send comes
// first, as the stream may wait for the rank that waits for this send.
static int
pull_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    atomic_store(wm_fragments_status(end), 0);
    *is_submitted(end) = true;
    end->fragments.next = 1;
    if (!is_fetched_at_once(end))
        wm_batch_flush_posts(device, stream);
    int code = wm_event_acquire(device, &end->event, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, device, err);
    if (code == 0)
        code = wm_producer_before(&end->access.producer, true, device, stream,
                                  err);
    if (code < 0)
        return code;
    return end->header.flag != 0
               ? wm_device_eager_fetch_on_stream(end, fetch_launched, err)
               : copy_on_stream(end, err);
}

// The caller has gone on: only final errors are reported.
static int
look_for_errors(wm_end_t *end, wm_error_t *err)
{
    bool unused;
    int device = end->access.user_device;
    if (!wm_fragments_ask_driver(end))
        return 0;
    int code = wm_event_done(device, end->event, &unused, err);
    return code < 0 && wm_event_look_for_errors(device, NULL) < 0 ? code : 0;
}

static int
has_ended(wm_end_t *end, wm_error_t *err)
{
    if (atomic_load(wm_fragments_status(end)) == WM_EAGER_LL_FAILED) {
        *err = end->op.error;
        return err->code;
    }
    return wm_fragments_are_taken(end) ? 1 : look_for_errors(end, err);
}

// Data that a living peer has posted come, even if the communicator was
// revoked.
static int
watch_stream(wm_end_t *end, int code, wm_error_t *err)
{
    if (code != 0)
        return code;
    return wm_take_has_lost(end, err) && end->peer->dead
               ? WM_ERR_MPI
               : wm_take_sender_failed(end, err);
}

static int
streamed_step(wm_end_t *end, wm_error_t *err)
{
    bool posted = is_posted(end);
    if (*is_submitted(end)) {
        if (end->recorded && posted && !atomic_load(&end->op.done))
            streamed_complete(end);
        return watch_stream(end, has_ended(end, err), err);
    }
    if (!posted
        && (!wm_word_reached(&end->slot->promised,
                             end->fragments.ready_base + 1)
            || !is_fetched_at_once(end)))
        return wm_take_watch(end, 0, err);
    return pull_on_stream(end, err); // the next step reports a failure
}

static bool
streamed_fail(wm_end_t *end, const wm_error_t *err)
{
    const wm_access_t *access = &end->access;
    // A stream waits in vain for a sender that has failed.
    if (*is_submitted(end) && atomic_load(&end->slot->failed))
        wm_slot_ready_for_sender(end->slot, end->fragments.ready_base + 1);
    (void)wm_take_stop(end);
    if (end->recorded)
        (void)!wm_event_synchronize(access->user_device, end->event, NULL);
    else if (*is_submitted(end) && !atomic_load(&end->op.done))
        (void)!wm_stream_synchronize(access->user_device, access->user_stream,
                                     NULL);
    wm_take_answer(end, err);
    return false;
}

static void
streamed_peer_died(wm_end_t *end)
{
    wm_take_peer_died(end);
    if (*is_submitted(end))
        wm_slot_ready_for_sender(end->slot, end->fragments.ready_base + 1);
}

static bool
fetching_accept(wm_end_t *end, const char **why)
{
    *why = "no stream of the caller's";
    if (end->access.user_device < 0)
        return false;
    *why = "the stream is of another device";
    return end->access.user_device == end->access.device
           && wm_device_eager_accept(end, why);
}

const wm_receiving_t wm_receiving_stream_eager = {
    .name = "stream fetches",
    .accept = fetching_accept,
    .reads = true,
    .unpacks = wm_device_eager_unpacks,
    .step = streamed_step,
    .fail = streamed_fail,
    .peer_died = streamed_peer_died,
};

// Returns true if a copy on the user's stream reaches both sides: any memory
// but that of a pool of another device, which only this process offers itself.
static bool
is_reached(const wm_end_t *end)
{
    int device = end->access.user_device;
    wm_pointer_t source;
    if (device == end->access.device)
        return true;
    return wm_memory_is_reached(&end->buffer.memory, device)
           && (!end->peer->self
               || (wm_pointer_describe(end->fragments.remote, &source, NULL)
                       == 0
                   && wm_memory_is_reached(&source, device)));
}

// A kernel reaches memory that its own device has mapped.
static bool
copying_accept(wm_end_t *end, const char **why)
{
    *why = "no stream of the caller's";
    if (end->access.user_device < 0)
        return false;
    *why = "the data come in fragments";
    if (end->fragments.count > 1 || end->link->import == NULL)
        return false;
    *why = "the stream's device does not reach the memory pool";
    if (!is_reached(end))
        return false;
    *why = "the stream cannot unpack these gaps";
    if (end->buffer.pattern != NULL && !wm_unpack_on_stream(end))
        return false;
    return !wm_device_eager_accept(end, why);
}

const wm_receiving_t wm_receiving_stream = {
    .name = "stream copies",
    .accept = copying_accept,
    .reads = true,
    .unpacks = wm_take_is_mapped_whole,
    .step = streamed_step,
    .fail = streamed_fail,
    .peer_died = streamed_peer_died,
};
