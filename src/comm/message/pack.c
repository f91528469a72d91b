// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/pack.h"

#include <stdlib.h>

#include "array/eager_ll.h"
#include "array/kernels.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/protocol.h"
#include "comm/node/slot.h"
#include "cuda/word.h"

#define LOOKS 16 // at our stream, in a step

enum { UNPACK_NEW, UNPACK_READ, UNPACK_WRITTEN };

typedef struct {
    wm_block_t *block; // stands in for the buffer
    char *source;      // the buffer, if it has no gaps
    char *host;        // stands in for the buffer
    char *span;        // page-locked copy of a pattern's memory
    int device;        // of the buffer that `host` stands in for
    int step;          // state of unpacking
    bool enqueued;     // unpacking is enqueued, or has run
    bool onto_device;  // the host unpacks into device memory
} gaps_t;

WM_STATE(gaps_t, gaps_of, gaps_state)

// Returns true if kernels pack the buffer.
static bool
by_kernel(const wm_end_t *end)
{
    const wm_pattern_t *pattern = end->buffer.pattern;
    return pattern != NULL && end->buffer.nbytes > 0
           && gaps_of(end)->host == NULL && wm_buffer_on_device(&end->buffer)
           && wm_pattern_is_strided(pattern);
}

static bool
by_host(const wm_end_t *end)
{
    return end->buffer.pattern != NULL && end->buffer.nbytes > 0
           && !by_kernel(end);
}

static int
stand_in_on_device(wm_end_t *end, size_t nbytes, wm_error_t *err)
{
    if (gaps_of(end)->block != NULL)
        return 0;
    int code = wm_block_alloc(end->access.device, nbytes, &gaps_of(end)->block,
                              err);
    if (code < 0)
        return code;
    wm_block_describe(gaps_of(end)->block, &end->buffer.memory);
    gaps_of(end)->source = end->buffer.data;
    end->buffer.data = wm_block_pointer(gaps_of(end)->block);
    return 0;
}

static int
stand_in_on_host(wm_end_t *end, size_t nbytes, wm_error_t *err)
{
    if (gaps_of(end)->host != NULL)
        return 0;
    gaps_of(end)->host = malloc(nbytes);
    if (gaps_of(end)->host == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "out of host memory: %zu bytes to pack a message "
                            "into",
                            nbytes);
    gaps_of(end)->device = end->access.device;
    end->buffer.memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    end->buffer.data = gaps_of(end)->host;
    return 0;
}

// Copies the memory of a datatype's elements to page-locked memory, after the
// users of that memory.
static int
read_span(wm_end_t *end, wm_error_t *err)
{
    const wm_pattern_t *pattern = end->buffer.pattern;
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_pinned_alloc(pattern->span, (void **)&gaps_of(end)->span,
                               err);
    end->access.idle = false;
    return code < 0 ? code
                    : wm_memory_copy(end->access.device, gaps_of(end)->span,
                                     pattern->data + pattern->low,
                                     pattern->span, end->access.stream, err);
}

// Packs GPU memory by MPI, and waits: after that it is a message of host
// memory.
static int
pack_stage(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.device;
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = stand_in_on_host(end, end->buffer.nbytes, err);
    if (code == 0)
        code = wm_pattern_stage(end->buffer.pattern, device,
                                end->access.stream, gaps_of(end)->host,
                                end->buffer.nbytes, end->op.comm->data, err);
    end->access.idle = code == 0;
    wm_access_forget_borrowed(&end->access); // the stream may be gone later
    end->access.producer.kind = WM_PRODUCER_NONE;
    return code;
}

static int
refuse_to_pack(wm_error_t *err)
{
    return wm_require_refuse("MPI alone knows the datatype's gaps",
                             "give a vector, a subarray or a strided array",
                             err);
}

int
wm_pack_prepare(wm_end_t *end, wm_error_t *err)
{
    if (by_kernel(end))
        return wm_kernels_prepare(end->access.device, WM_KERNELS_COPY, err);
    if (!by_host(end))
        return 0;
    if (wm_buffer_on_device(&end->buffer))
        return wm_require_is_on(end->op.comm) ? refuse_to_pack(err)
                                              : pack_stage(end, err);
    int code = stand_in_on_host(end, end->buffer.nbytes, err);
    return code < 0 ? code
                    : wm_pattern_pack(end->buffer.pattern, gaps_of(end)->host,
                                      end->buffer.nbytes, NULL,
                                      end->op.comm->data, err);
}

const wm_strided_t *
wm_pack_by_eager_ll(const wm_end_t *end)
{
    bool by_eager_ll = by_kernel(end) && gaps_of(end)->block == NULL
                       && end->buffer.pattern->count == 1
                       && wm_eager_ll_takes(&end->buffer.pattern->parts[0]);
    return by_eager_ll ? &end->buffer.pattern->parts[0] : NULL;
}

// Takes the block of a copy at once: without memory the send waits for its
// receiver.
static bool
pack_try_take(wm_end_t *end, const char **why)
{
    *why = "the host packs";
    if (end->buffer.pattern != NULL)
        return by_kernel(end);
    *why = "no memory for a copy";
    if (stand_in_on_device(end, end->buffer.nbytes, NULL) < 0)
        return false;
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)end->buffer.nbytes);
    return true;
}

// Takes the block; nothing is packed yet.
static int
pack_offer(wm_end_t *end, wm_error_t *err)
{
    end->around = &wm_sending_packed;
    return stand_in_on_device(end, end->buffer.nbytes, err);
}

// Copies the message into the block.
static int
pack_enqueue(wm_end_t *end, int device, CUstream stream, wm_error_t *err)
{
    const wm_pattern_t *pattern = end->buffer.pattern;
    return pattern == NULL
               ? wm_memory_copy(device, end->buffer.data, gaps_of(end)->source,
                                end->buffer.nbytes, stream, err)
               : wm_pattern_copy_part(pattern, 0, end->buffer.data,
                                      end->buffer.nbytes, true, device, stream,
                                      err);
}

// Packs on the user's stream, after all work that writes the buffer; later
// work on that stream may change the buffer.
static int
pack_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    int code = wm_producer_before(&end->access.producer, false, device, stream,
                                  err);
    // The stream may be gone when the block is freed.
    if (code == 0)
        code = wm_event_acquire(device, &end->event, err);
    if (code == 0)
        code = pack_enqueue(end, device, stream, err);
    if (code < 0)
        return code;
    code = wm_event_record(device, end->event, stream, err);
    end->recorded = code == 0;
    if (code < 0) // without an event, we wait
        (void)!wm_stream_synchronize(device, stream, NULL);
    return code;
}

// Enqueues the packing into the block, which becomes the producer.
static int
pack_go(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.device;
    CUstream stream = end->access.user_stream;
    int code;
    if (end->access.user_device == device)
        code = pack_on_stream(end, err);
    else {
        code = wm_end_open_stream(end, err);
        stream = end->access.stream;
        if (code == 0)
            code = pack_enqueue(end, device, stream, err);
        if (code == 0 && end->access.user_device >= 0)
            code = wm_stream_follow(end->access.user_device,
                                    end->access.user_stream, device, stream,
                                    err);
    }
    if (code < 0)
        return code;
    end->access.producer = (wm_producer_t){
        .kind = WM_PRODUCER_STREAM,
        .device = device,
        .stream = stream,
    };
    // The payload is read later, when a borrowed stream may be gone.
    if (end->header.kind == WM_MESSAGE_DATA && !end->access.pooled) {
        end->access.opened = false;
        wm_access_record(&end->access);
    }
    return 0;
}

// Lets the caller go on when all is packed, which is a copy as well.
static int
pack_report_early(wm_end_t *end, wm_error_t *err)
{
    const wm_fragments_t *fragments = &end->fragments;
    (void)err;
    if (fragments->next == 0
        || !wm_word_reached(&end->slot->ready, fragments->ready_base + 1))
        return 0;
    // The stream may be gone after this.
    wm_access_forget_borrowed(&end->access);
    wm_op_complete(&end->op);
    wm_engine_notify();
    return 0;
}

const wm_sending_t wm_sending_packed = {
    .name = "packed",
    .packs = true,
    .try_take = pack_try_take,
    .offer = pack_offer,
    .go = pack_go,
    .report_early = pack_report_early,
};

int
wm_unpack_prepare(wm_end_t *end, wm_error_t *err)
{
    return by_kernel(end)
               ? wm_kernels_prepare(end->access.device, WM_KERNELS_COPY, err)
               : 0;
}

int
wm_unpack_match(wm_end_t *end, wm_error_t *err)
{
    if (!by_host(end) || end->header.nbytes == 0)
        return 0;
    gaps_of(end)->onto_device |= wm_buffer_on_device(&end->buffer);
    if (gaps_of(end)->onto_device && wm_require_is_on(end->op.comm)
        && (end->header.kind == WM_MESSAGE_OFFER || end->header.on_device))
        return refuse_to_pack(err);
    return stand_in_on_host(end, wm_end_fitting_bytes(end), err);
}

int
wm_unpack_reserve(wm_end_t *end, bool unpacks, wm_error_t *err)
{
    if (!by_kernel(end))
        return wm_unpack_match(end, err);
    end->unpacks = unpacks;
    return unpacks || end->header.nbytes == 0
               ? 0
               : stand_in_on_device(end, wm_end_fitting_bytes(end), err);
}

bool
wm_unpack_on_stream(const wm_end_t *end)
{
    return by_kernel(end) && end->access.user_device == end->access.device;
}

int
wm_unpack_enqueue(wm_end_t *end, const char *from, int device, CUstream stream,
                  wm_error_t *err)
{
    if (!by_kernel(end))
        return 0;
    gaps_of(end)->enqueued = true;
    return wm_pattern_copy_part(end->buffer.pattern, 0, (char *)from,
                                wm_end_fitting_bytes(end), false, device,
                                stream, err);
}

bool
wm_unpack_is_left(const wm_end_t *end)
{
    return (gaps_of(end)->block != NULL || gaps_of(end)->host != NULL)
           && !gaps_of(end)->enqueued && end->op.error.code == 0
           && !end->op.result.cancelled;
}

// Unpacks by MPI into the copy of the memory, gaps included, which is then
// copied back.
static int
unpack_span(wm_end_t *end, wm_error_t *err)
{
    const wm_pattern_t *pattern = end->buffer.pattern;
    int code = wm_access_look(&end->access, LOOKS, err);
    if (code <= 0)
        return code;
    code = wm_pattern_unpack(
        pattern, gaps_of(end)->host, wm_end_fitting_bytes(end),
        wm_pattern_base(pattern, gaps_of(end)->span), end->op.comm->data, err);
    if (code < 0)
        return code;
    wm_stat_add(WM_STAT_staged_bytes, (int64_t)wm_end_fitting_bytes(end));
    end->access.idle = false;
    gaps_of(end)->step = UNPACK_WRITTEN;
    return wm_memory_copy(end->access.device, pattern->data + pattern->low,
                          gaps_of(end)->span, pattern->span,
                          end->access.stream, err);
}

static int
begin_unpacking(wm_end_t *end, wm_error_t *err)
{
    int code;
    if (gaps_of(end)->host != NULL && !gaps_of(end)->onto_device) {
        gaps_of(end)->enqueued = true;
        code = wm_pattern_unpack(end->buffer.pattern, gaps_of(end)->host,
                                 wm_end_fitting_bytes(end), NULL,
                                 end->op.comm->data, err);
        return code < 0 ? code : 1;
    }
    if (gaps_of(end)->host != NULL) {
        gaps_of(end)->step = UNPACK_READ;
        // A message into host memory was taken on the sender's device.
        wm_access_move(&end->access, gaps_of(end)->device);
        return read_span(end, err);
    }
    gaps_of(end)->step = UNPACK_WRITTEN;
    code = wm_end_open_stream(end, err);
    end->access.idle = false;
    return code < 0
               ? code
               : wm_unpack_enqueue(end, end->buffer.data, end->access.device,
                                   end->access.stream, err);
}

uint64_t
wm_unpack_mark(const wm_end_t *end)
{
    return (uint64_t)gaps_of(end)->step;
}

int
wm_unpack_step(wm_end_t *end, wm_error_t *err)
{
    switch (gaps_of(end)->step) {
    case UNPACK_NEW:
        return begin_unpacking(end, err);
    case UNPACK_READ:
        return unpack_span(end, err);
    default:
        return wm_access_look(&end->access, LOOKS, err);
    }
}

void
wm_pack_drop(wm_end_t *end)
{
    // After a failed send, packing may still run.
    if (gaps_of(end)->block != NULL && !end->receives
        && end->op.error.code != 0)
        wm_access_wait_for_notes(&end->access);
    if (gaps_of(end)->block != NULL && end->recorded) {
        wm_block_free(gaps_of(end)->block, 1, &end->event,
                      &end->access.user_device);
        end->event = NULL;
    }
    else if (gaps_of(end)->block != NULL)
        wm_block_free(gaps_of(end)->block, 0, NULL, NULL);
    gaps_of(end)->block = NULL;
    if (gaps_of(end)->span != NULL)
        wm_pinned_free(gaps_of(end)->span);
    gaps_of(end)->span = NULL;
    free(gaps_of(end)->host);
    gaps_of(end)->host = NULL;
}
