// SPDX-License-Identifier: BSD-3-Clause
// A receive whose own stream, or this thread, copies fragment by fragment.
// Short copies that are ready together share a kernel; a long copy beside
// another one has a kernel of its own.
#include <string.h>

#include "comm/link/link.h"
#include "comm/message/pack.h"
#include "comm/node/slot.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/take.h"

#define SYNC_BYTES 262144

typedef struct {
    CUstream side; // of the pool, every other fragment's; NULL: none
    bool alone;    // it must not share a kernel
    bool signals;  // its stream writes `taken`
    _Atomic bool synchronized; // the caller has waited
    int code;                  // result of that wait; negative: see op.error
} pulling_t;

WM_STATE(pulling_t, pulling_of, second_state)

// Copies fragments on this thread, from host memory to host memory.
static int
copy_here(wm_end_t *end)
{
    wm_fragments_t *fragments = &end->fragments;
    while (fragments->next < fragments->count
           && wm_fragment_is_ready(end, fragments->next)) {
        uint32_t at = fragments->next++;
        memcpy(end->buffer.data + wm_fragment_start(fragments, at),
               fragments->remote + at % fragments->ring * fragments->nbytes,
               wm_fragment_length(end, at));
        wm_slot_set_taken(end->slot, fragments->taken_base + fragments->next);
    }
    return fragments->next == fragments->count;
}

static int
step_by_host(wm_end_t *end, wm_error_t *err)
{
    return wm_take_watch(end, copy_here(end), err);
}

// Chooses the stream of a fragment. Fragments take turns on two streams, so
// that one is copied while the words of the other are written. The last one is
// on end->access.stream, after all others.
static int
stream_of_fragment(wm_end_t *end, uint32_t at, CUstream *stream,
                   CUstream *other, wm_error_t *err)
{
    int code = 0;
    *stream = end->access.stream;
    *other = NULL;
    if (end->fragments.count == 1)
        return 0;
    if (pulling_of(end)->side == NULL) {
        code = wm_stream_acquire(end->access.device, &pulling_of(end)->side,
                                 err);
        if (code == 0)
            code = wm_stream_follow(end->access.device, pulling_of(end)->side,
                                    end->access.device, end->access.stream,
                                    err);
    }
    bool aside = (end->fragments.count - 1 - at) % 2 == 1;
    *stream = aside ? pulling_of(end)->side : end->access.stream;
    *other = aside ? end->access.stream : pulling_of(end)->side;
    return code;
}

// Returns true if a kernel can copy the whole message.
static bool
is_within_reach(const wm_end_t *end)
{
    return end->buffer.pattern == NULL && end->fragments.count == 1
           && end->link->import != NULL && wm_buffer_on_device(&end->buffer)
           && end->buffer.memory.device == end->access.device
           && (!end->peer->self || end->header.device == end->access.device);
}

static int
copy_fragment(wm_end_t *end, uint32_t at, CUstream stream, wm_error_t *err)
{
    const wm_fragments_t *fragments = &end->fragments;
    if (end->unpacks)
        return wm_unpack_enqueue(end, fragments->remote, end->access.device,
                                 stream, err);
    wm_pull_t whole = {.dst = end->buffer.data,
                       .src = fragments->remote,
                       .nbytes = end->header.nbytes};
    if (is_within_reach(end) && wm_take_is_beside(end)
        && wm_pull_serves(&whole))
        return wm_pull_launch_long(end->access.device, &whole, stream, err);
    return wm_memory_copy(end->access.device,
                          end->buffer.data + wm_fragment_start(fragments, at),
                          fragments->remote
                              + at % fragments->ring * fragments->nbytes,
                          wm_fragment_length(end, at), stream, err);
}

static int
submit_fragment(wm_end_t *end, wm_error_t *err)
{
    wm_fragments_t *fragments = &end->fragments;
    uint32_t at = fragments->next++;
    bool last = at + 1 == fragments->count;
    CUstream stream, other;
    int code = wm_end_open_stream(end, err);
    pulling_of(end)->signals = last && !end->blocking;
    if (code == 0 && (!last || pulling_of(end)->signals))
        code = wm_node_register(end->peer, false, end->access.device, err);
    end->access.idle = false;
    if (code == 0)
        code = stream_of_fragment(end, at, &stream, &other, err);
    if (code == 0)
        code = copy_fragment(end, at, stream, err);
    // A word says that all fragments up to this one are taken.
    if (code == 0 && other != NULL)
        code = wm_stream_follow(end->access.device, stream, end->access.device,
                                other, err);
    // Packed data are unpacked after the last fragment.
    if (code == 0 && last && end->buffer.pattern != NULL && !end->unpacks)
        code = wm_unpack_enqueue(end, end->buffer.data, end->access.device,
                                 stream, err);
    if (code == 0 && (!last || pulling_of(end)->signals))
        code = wm_slot_enqueue_taken(end->slot, end->access.device, stream,
                                     fragments->taken_base + at + 1, err);
    return code;
}

// Returns true if the copy may share a kernel: a copy engine and a stream for
// each short copy take longer than its bytes.
static bool
may_share(const wm_end_t *end)
{
    return !end->blocking && !pulling_of(end)->alone
           && end->access.user_device < 0 && end->fragments.next == 0
           && end->header.nbytes <= WM_EAGER_LL_BYTES && is_within_reach(end)
           && (wm_access_is_noted(&end->access)
               || end->access.producer.kind == WM_PRODUCER_NONE);
}

// Copies alone at the next step.
static void
pull_alone(wm_end_t *end)
{
    end->batched = false;
    pulling_of(end)->alone = true;
    end->fragments.next = 0;
}

static int
share(wm_end_t *end, wm_error_t *err)
{
    int code = wm_pull_prepare(end->access.device, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, end->access.device, err);
    if (code < 0)
        return code;
    atomic_store(wm_fragments_status(end), 0);
    end->batched = pulling_of(end)->signals = true;
    end->access.idle = false;
    end->fragments.next = 1;
    wm_batch_add_pull(
        &(wm_pull_t){.dst = end->buffer.data,
                     .src = end->fragments.remote,
                     .nbytes = end->header.nbytes,
                     .taken = (uint32_t *)&end->slot->taken,
                     .taken_value = end->fragments.taken_base + 1},
        end, pull_alone);
    return 0;
}

// Sets *ended if all submitted work has ended.
static int
pull_ended(wm_end_t *end, bool *ended, wm_error_t *err)
{
    if (pulling_of(end)->signals) {
        *ended = wm_fragments_are_taken(end);
        return *ended ? 0 : wm_fragments_look_for_errors(end, err);
    }
    if (!end->blocking || end->header.nbytes > SYNC_BYTES)
        return wm_stream_spin(end->access.device, end->access.stream, 2, ended,
                              err);
    // A small copy ends within microseconds, and a query alone takes one: a
    // caller that waits does so in the driver, without the lock.
    *ended = atomic_load(&pulling_of(end)->synchronized);
    if (!*ended)
        atomic_store(&end->op.news, 1);
    else if (pulling_of(end)->code < 0)
        *err = end->op.error;
    return *ended ? pulling_of(end)->code : 0;
}

static int
pull(wm_end_t *end, wm_error_t *err)
{
    wm_fragments_t *fragments = &end->fragments;
    int code;
    bool ended;
    if (end->batched
        && atomic_load(wm_fragments_status(end)) == WM_EAGER_LL_FAILED) {
        *err = end->op.error;
        return err->code;
    }
    if (may_share(end) && wm_fragment_is_ready(end, 0))
        return share(end, err);
    while (fragments->next < fragments->count
           && wm_fragment_is_ready(end, fragments->next))
        if ((code = submit_fragment(end, err)) < 0)
            return code;
    // A blocking caller gets its stream early.
    if (fragments->next < fragments->count)
        return end->blocking ? wm_end_open_stream(end, err) : 0;
    if ((code = pull_ended(end, &ended, err)) < 0 || !ended)
        return code;
    end->access.idle = true;
    end->peer->copied = false;
    if (!pulling_of(end)
             ->signals) // else the slot may serve another message by now
        wm_slot_set_taken(end->slot, fragments->taken_base + fragments->count);
    return 1;
}

// Waits in the driver for the copy that the engine has submitted.
static void
pulling_synchronize(wm_end_t *end)
{
    wm_error_t err;
    pulling_t *pulling = pulling_of(end);
    atomic_store(&end->op.news, 0);
    // The progress thread may have asked for the wait again.
    if (atomic_load(&pulling->synchronized))
        return;
    pulling->code = wm_stream_synchronize(end->access.device,
                                          end->access.stream, &err);
    if (pulling->code < 0)
        wm_op_fail(&end->op, &err);
    atomic_store(&pulling->synchronized, true);
}

static void
pulling_drop(wm_end_t *end)
{
    pulling_t *pulling = pulling_of(end);
    if (pulling->side != NULL)
        wm_stream_release(end->access.device, pulling->side);
    pulling->side = NULL;
}

static int
pulling_step(wm_end_t *end, wm_error_t *err)
{
    return wm_take_watch(end, pull(end, err), err);
}

static bool
pulling_accept(wm_end_t *end, const char **why)
{
    (void)end, (void)why;
    return true;
}

static bool
pulling_fail(wm_end_t *end, const wm_error_t *err)
{
    const wm_access_t *access = &end->access;
    if (end->batched && access->stream != NULL && !access->opened)
        (void)!wm_stream_synchronize(access->device, access->stream, NULL);
    (void)wm_take_stop(end);
    if (pulling_of(end)->side != NULL)
        (void)!wm_stream_synchronize(access->device, pulling_of(end)->side,
                                     NULL);
    wm_take_answer(end, err);
    return false;
}

const wm_receiving_t wm_receiving_pull = {
    .name = "pull",
    .accept = pulling_accept,
    .reads = true,
    .unpacks = wm_take_is_mapped_whole,
    .step = pulling_step,
    .fail = pulling_fail,
    .peer_died = wm_take_peer_died,
    .synchronize = pulling_synchronize,
    .drop = pulling_drop,
};

static bool
by_host_accept(wm_end_t *end, const char **why)
{
    *why = "the data is not staged for host memory";
    return end->fragments.on_host;
}

const wm_receiving_t wm_receiving_by_host = {
    .name = "by host",
    .accept = by_host_accept,
    .reads = true,
    .step = step_by_host,
    .fail = wm_take_fail,
    .peer_died = wm_take_peer_died,
};
