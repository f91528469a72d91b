// SPDX-License-Identifier: BSD-3-Clause
#include "comm/link/link.h"
#include "comm/protocol/device_eager.h"

#include "array/eager_ll.h"
#include "array/ll.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/message/pack.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/take.h"
#include "cuda/word.h"

#define BUFFERS 32
// Time that a kernel waits for announced data, microseconds.
#define PATIENCE_US 100

typedef struct {
    char *pointer;
    uint32_t flag; // of its latest message
    bool taken;
} eager_buffer_t;

// The eager LL buffers of a device.
typedef struct {
    wm_block_t *block; // NULL: not made
    eager_buffer_t buffers[BUFFERS];
} device_buffers_t;

static device_buffers_t devices[WM_MAX_DEVICES];

// The buffer of a send; NULL: none.
WM_STATE(eager_buffer_t *, buffer_of, first_state)

static int
device_eager_make(int device, device_buffers_t *buffers, wm_error_t *err)
{
    const size_t size = (size_t)BUFFERS * WM_EAGER_LL_BUFFER_BYTES;
    wm_block_t *block;
    int code = wm_eager_ll_prepare(device, err);
    if (code == 0)
        code = wm_block_alloc(device, size, &block, err);
    if (code < 0)
        return code;
    char *memory = wm_block_pointer(block);
    code = wm_memory_copy_now(device, memory, NULL, size, err);
    if (code < 0) {
        wm_block_free(block, 0, NULL, NULL);
        return code;
    }
    for (size_t i = 0; i < BUFFERS; ++i)
        buffers->buffers[i].pointer = memory + i * WM_EAGER_LL_BUFFER_BYTES;
    buffers->block = block;
    return 0;
}

// Acquires a free buffer, with a new flag; *buffer is NULL if all are taken.
static int
device_eager_acquire(int device, eager_buffer_t **buffer, wm_pointer_t *memory,
                     wm_error_t *err)
{
    device_buffers_t *buffers = &devices[device];
    *buffer = NULL;
    int code = buffers->block == NULL ? device_eager_make(device, buffers, err)
                                      : 0;
    if (code < 0)
        return code;
    for (int i = 0; i < BUFFERS && *buffer == NULL; ++i)
        if (!buffers->buffers[i].taken)
            *buffer = &buffers->buffers[i];
    if (*buffer == NULL)
        return 0;
    (*buffer)->taken = true;
    ++(*buffer)->flag;
    wm_block_describe(buffers->block, memory);
    return 0;
}

// Returns true if the message has gaps, and nothing packs it before.
static bool
has_gaps(const wm_end_t *end)
{
    return end->buffer.pattern != NULL && end->around == NULL;
}

// Returns the gaps of the buffer, which the kernel reads or writes in place.
static const wm_strided_t *
strided_of(const wm_end_t *end)
{
    return end->buffer.pattern != NULL ? wm_pack_by_eager_ll(end) : NULL;
}

// Returns true if the user's stream itself posts the message: then the user's
// memory is free after the post, whenever the receiver comes.
static bool
posts_on_stream(const wm_end_t *end)
{
    return !end->synchronous && end->access.user_device == end->access.device;
}

// Returns the reason why the message is not for an eager LL buffer, or NULL.
static const char *
reason_against(const wm_end_t *end)
{
    if (end->header.nbytes > WM_EAGER_LL_BYTES)
        return "longer than 64 KiB";
    if (end->around == NULL && !posts_on_stream(end) && wm_eager_copies(end))
        return "the stream, which copies it, is of another GPU";
    if (has_gaps(end))
        return wm_pack_by_eager_ll(end) == NULL
                   ? "its kernels do not know these gaps"
                   : NULL;
    return end->buffer.memory.exportable && !posts_on_stream(end)
               ? "the memory can be mapped in place"
               : NULL;
}

// Releases the buffer. The message was taken, and no kernel uses the buffer
// any more.
static void
device_eager_release(wm_end_t *end)
{
    eager_buffer_t **buffer = buffer_of(end);
    // A buffer that has used its last flag is never used again.
    (*buffer)->taken = (*buffer)->flag == UINT32_MAX;
    *buffer = NULL;
}

static bool
device_eager_try_take(wm_end_t *end, const char **why)
{
    eager_buffer_t **buffer = buffer_of(end);
    wm_pointer_t memory;
    wm_error_t err;
    if (!wm_offer_open_mapped(end, why)
        || (*why = reason_against(end)) != NULL)
        return false;
    int code = device_eager_acquire(end->access.device, buffer, &memory, &err);
    *why = "all eager LL buffers are in use";
    if (code == 0 && *buffer == NULL)
        return false;
    if (code == 0)
        code = wm_offer_export(end, (*buffer)->pointer, &memory, &err);
    if (code < 0) {
        if (*buffer != NULL)
            device_eager_release(end);
        *why = wm_offer_note(end, &err);
        return false;
    }
    return true;
}

static int
device_eager_offer(wm_end_t *end, wm_error_t *err)
{
    const eager_buffer_t *buffer = *buffer_of(end);
    end->header.flag = buffer->flag;
    wm_offer_hand_off(end, buffer->pointer);
    return wm_offer_describe(end, WM_STAGE_NOT, err);
}

// The buffer leaks if a kernel may still use it.
static void
device_eager_drop(wm_end_t *end)
{
    if (*buffer_of(end) != NULL
        && (wm_end_is_quiet(end) || end->fragments.next == 0))
        device_eager_release(end);
    *buffer_of(end) = NULL;
}

// Called when the batch has launched the kernel, or failed to.
static void
device_eager_posted(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    end->batched = false;
    if (failure != NULL) {
        end->fragments.next = 0;
        wm_send_fail(end, failure);
        return;
    }
    wm_offer_posted(end);
    if (posts_on_stream(end) && wm_end_leave_stream(end, &err) < 0)
        wm_send_fail(end, &err);
}

// Launches a kernel that writes the message into its eager LL buffer.
static int
device_eager_go(wm_end_t *end, wm_error_t *err)
{
    int code = posts_on_stream(end) ? wm_access_open_named(&end->access, err)
                                    : wm_end_open_stream(end, err);
    if (code < 0)
        return code;
    wm_eager_ll_t message = {
        .lines = end->fragments.remote,
        .user = end->buffer.data,
        .strided = strided_of(end),
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->ready,
        .value = end->fragments.ready_base + 1,
    };
    end->fragments.next = 1;
    wm_batch_add(&(wm_batch_t){.device = end->access.device,
                               .stream = end->access.stream,
                               .posts = true},
                 &message, end, device_eager_posted);
    if (end->paired && (end->access.user_device < 0 || posts_on_stream(end))) {
        wm_batch_hold();
        if (posts_on_stream(end)) { // else each rank would wait to be launched
            wm_slot_set_promised(end->slot, end->fragments.ready_base + 1);
            end->batched = true; // no step before the launch
        }
    }
    else if (!end->more)
        wm_batch_flush();
    return 0;
}

// Copies a message that must go through the host after all out of its buffer,
// unless the user's memory still has the data, without gaps.
static int
device_eager_copy_out(wm_end_t *end, char *into, uint32_t ready,
                      wm_error_t *err)
{
    if (!posts_on_stream(end) && !atomic_load(&end->op.done)
        && strided_of(end) == NULL)
        return 0;
    wm_eager_ll_t message = {
        .lines = (*buffer_of(end))->pointer,
        .user = into,
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->ready,
        .value = ready,
    };
    int code = wm_eager_ll_launch(end->access.device, NULL, 0, &message, 1,
                                  WM_EAGER_LL_FOR_EVER, end->access.stream,
                                  err);
    return code < 0 ? code : 1;
}

// The data are a copy already.
static int
device_eager_report_early(wm_end_t *end, wm_error_t *err)
{
    (void)err;
    if (wm_offer_is_handed_off(end))
        wm_eager_report(end);
    return 0;
}

const wm_sending_t wm_sending_device_eager = {
    .name = "device eager",
    .try_take = device_eager_try_take,
    .offer = device_eager_offer,
    .go = device_eager_go,
    .step = wm_offer_step,
    .report_early = device_eager_report_early,
    .fail = wm_offer_fail_handed_off,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .copy_out = device_eager_copy_out,
    .drop = device_eager_drop,
};

// --- the receiver --------------------------------------------------------

bool
wm_device_eager_accept(wm_end_t *end, const char **why)
{
    *why = "the data is not in an eager LL buffer";
    return end->header.flag != 0 && end->link->import != NULL;
}

bool
wm_device_eager_unpacks(const wm_end_t *end)
{
    return wm_pack_by_eager_ll(end) != NULL;
}

// A kernel that reads an eager LL buffer.
typedef struct {
    bool under_way;
    bool late; // a kernel did not find the data
} fetch_t;

WM_STATE(fetch_t, fetching_of, second_state)

// Not on the sender's own device, unless there is MPS: processes take turns on
// it, and one would wait through its turn for the other.
bool
wm_device_eager_waits(const wm_end_t *end)
{
    const wm_device_t *device;
    return !fetching_of(end)->late
           && (!wm_take_is_on_same_gpu(end)
               || (wm_device_describe(end->access.device, &device, NULL) == 0
                   && device->mps));
}

static wm_eager_ll_t
fetch_of(const wm_end_t *end)
{
    return (wm_eager_ll_t){
        .lines = end->fragments.remote,
        .user = end->buffer.data,
        .strided = strided_of(end),
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->taken,
        .value = end->fragments.taken_base + 1,
    };
}

int
wm_device_eager_fetch_on_stream(wm_end_t *end,
                                void (*launched)(wm_end_t *end,
                                                 const wm_error_t *failure),
                                wm_error_t *err)
{
    int device = end->access.user_device;
    int code = wm_eager_ll_prepare(device, err);
    // A stream that waits for a word takes longer than a kernel that does.
    if (code == 0 && !wm_device_eager_waits(end))
        code = wm_word_wait(device, end->access.user_stream, &end->slot->ready,
                            end->fragments.ready_base + 1, err);
    if (code < 0)
        return code;
    wm_eager_ll_t message = fetch_of(end);
    message.stop = &end->slot->failed;
    wm_batch_add(&(wm_batch_t){.device = device,
                               .stream = end->access.user_stream,
                               .patience_us = WM_EAGER_LL_FOR_EVER},
                 &message, end, launched);
    return 0;
}

static int
device_eager_fetch(wm_end_t *end, wm_error_t *err)
{
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, end->access.device, err);
    if (code < 0)
        return code;
    wm_eager_ll_t message = fetch_of(end);
    message.status = wm_fragments_status(end);
    atomic_store(message.status, 0);
    fetching_of(end)->under_way = true;
    end->access.idle = false;
    end->fragments.next = 1;
    wm_batch_add(&(wm_batch_t){.device = end->access.device,
                               .stream = end->access.stream,
                               .patience_us = PATIENCE_US},
                 &message, end, wm_fragments_launched);
    return 0;
}

// Returns 1 when the data are there. The host waits for data that are late.
static int
fetch_ended(wm_end_t *end, wm_error_t *err)
{
    switch (atomic_load(wm_fragments_status(end))) {
    case WM_EAGER_LL_TAKEN:
        return 1;
    case WM_EAGER_LL_LATE:
        fetching_of(end)->under_way = false;
        fetching_of(end)->late = true;
        end->fragments.next = 0;
        return 0;
    case WM_EAGER_LL_FAILED:
        *err = end->op.error;
        return err->code;
    default:
        return wm_fragments_look_for_errors(end, err);
    }
}

static int
device_eager_pull(wm_end_t *end, wm_error_t *err)
{
    if (fetching_of(end)->under_way) {
        int code = fetch_ended(end, err);
        end->access.idle = code > 0;
        return code;
    }
    return wm_fragment_is_ready(end, 0) || wm_device_eager_waits(end)
               ? device_eager_fetch(end, err)
               : 0;
}

static int
device_eager_step(wm_end_t *end, wm_error_t *err)
{
    return wm_take_watch(end, device_eager_pull(end, err), err);
}

static bool
device_eager_fail(wm_end_t *end, const wm_error_t *err)
{
    if (wm_take_stop(end) < 0 && fetching_of(end)->under_way)
        end->packet = NULL; // leaks: a kernel may write its status
    wm_take_answer(end, err);
    return false;
}

const wm_receiving_t wm_receiving_device_eager = {
    .name = "device eager",
    .accept = wm_device_eager_accept,
    .reads = true,
    .unpacks = wm_device_eager_unpacks,
    .step = device_eager_step,
    .fail = device_eager_fail,
    .peer_died = wm_take_peer_died,
};

// Frees the buffers of all devices, if all operations have ended.
static void
device_eager_end(void)
{
    wm_engine_lock();
    bool used = wm_engine_first() != NULL;
    wm_engine_unlock();
    if (used)
        return;
    for (int device = 0; device < WM_MAX_DEVICES; ++device) {
        device_buffers_t *buffers = &devices[device];
        if (buffers->block != NULL)
            wm_block_free(buffers->block, 0, NULL, NULL);
        *buffers = (device_buffers_t){0};
    }
}

const wm_module_t wm_device_eager_module = {.end = device_eager_end};
