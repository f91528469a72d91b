// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_run.h"

#include <stdlib.h>
#include <string.h>

#include "array/pull.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/stream_failure.h"
#include "comm/rma/window_request.h"
#include "comm/diagnostics/wait.h"
#include "comm/engine/engine.h"
#include "comm/rma/update.h"

// A kernel copies fewer bytes, because it tells its end at once.
#define SHORT_BYTES ((size_t)32 << 10)
#define ARGUMENTS WM_WINDOW_ARGUMENTS
#define PAGED_BYTES SHORT_BYTES // from here on, the driver copies host memory

// Contiguous memory that kernels reach, for one argument.
typedef struct {
    char *data;
    wm_window_pending_t kept; // moved to the window when the call has begun
    bool unpacks;             // kernels copy `data` to the argument's parts
    wm_window_side_t *side;
} landing_t;

// --- the stream ---------------------------------------------------------

static int
run_open(wm_window_t *window, wm_error_t *err)
{
    if (window->opened)
        return 0;
    int code = wm_stream_acquire(window->device, &window->stream, err);
    if (code == 0)
        code = wm_pull_prepare(window->device, err);
    window->opened = code == 0;
    if (code == 0 && !wm_signal_acquire(&window->signal))
        window->signal.word = NULL;
    return code;
}

// Orders the stream behind the work that uses an argument.
static int
run_order(wm_window_t *window, const wm_window_side_t *side, bool writes,
          wm_error_t *err)
{
    const wm_producer_t *producer = &side->buffer.producer;
    bool idle = false;
    if (producer->kind == WM_PRODUCER_NONE)
        return 0;
    if (window->named)
        return wm_producer_before_on(producer, writes, window->device,
                                     window->stream, window->captured, err);
    int code = wm_producer_refuse_capture(producer, err);
    if (code == 0)
        code = wm_producer_idle(producer, writes, &idle, err);
    return code < 0 || idle
               ? code
               : wm_producer_before(producer, writes, window->device,
                                    window->stream, err);
}

static int
run_look(void *context, wm_error_t *err)
{
    wm_window_t *window = context;
    bool idle = false;
    if (window->signals && wm_signal_is_set(&window->signal))
        return 1;
    if (window->signals && ++window->looks % WM_SIGNAL_LOOKS != 0)
        return 0;
    int code = wm_stream_spin(window->device, window->stream, WM_LOOK_TRIES,
                              &idle, err);
    return code < 0 ? code : idle;
}

void
wm_window_release(wm_window_pending_t *one)
{
    if (one->pinned != NULL)
        wm_pinned_free(one->pinned);
    if (one->block != NULL)
        wm_block_free(one->block, 0, NULL, NULL);
    free(one->parts);
    if (one->release != NULL)
        one->release(one->owner);
    *one = (wm_window_pending_t){0};
}

// Takes the arguments of work that has ended out of the window; returns how
// many.
static int
run_take_ended(wm_window_t *window, wm_window_pending_t *ended)
{
    int count = window->ended;
    memcpy(ended, window->pending, (size_t)count * sizeof *ended);
    window->pending_count -= count;
    window->ended = 0;
    memmove(window->pending, window->pending + count,
            (size_t)window->pending_count * sizeof *ended);
    return count;
}

static void
run_drop_ended(wm_window_t *window)
{
    wm_window_pending_t ended[WM_WINDOW_PENDING];
    int count = run_take_ended(window, ended);
    for (int i = 0; i < count; ++i)
        wm_window_release(&ended[i]);
}

void
wm_window_release_ended(wm_window_t *window)
{
    wm_window_pending_t ended[WM_WINDOW_PENDING];
    if (window->pending_count == 0
        || pthread_mutex_trylock(&window->lock) != 0)
        return; // the thread that has the lock comes here as well
    int count = run_take_ended(window, ended);
    pthread_mutex_unlock(&window->lock);
    for (int i = 0; i < count; ++i)
        wm_window_release(&ended[i]);
}

// Packs the parts of host memory.
static int
host_pack(const wm_strided_t *parts, int count, char *packed, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < count && code == 0; ++i) {
        size_t nbytes = wm_strided_nbytes(&parts[i]);
        code = wm_strided_copy_part(&parts[i], 0, packed, nbytes, true, -1,
                                    NULL, err);
        packed += nbytes;
    }
    return code;
}

int
wm_window_deliver(wm_window_pending_t *one, size_t most, wm_error_t *err)
{
    wm_strided_t dense;
    const wm_strided_t *parts = one->parts;
    int code = 0, count = one->into == NULL ? 0 : one->count;
    if (parts == NULL && one->into != NULL) {
        wm_strided_init(&dense, one->into, (int64_t)one->nbytes);
        parts = &dense;
        count = 1;
    }
    while (one->delivered < count && most > 0 && code == 0) {
        const wm_strided_t *part = &parts[one->delivered];
        size_t left = wm_strided_nbytes(part) - one->within;
        size_t nbytes = left < most ? left : most;
        code = wm_strided_copy_part(part, one->within,
                                    (char *)one->pinned + one->at, nbytes,
                                    false, -1, NULL, err);
        one->at += nbytes;
        one->within = nbytes < left ? one->within + nbytes : 0;
        one->delivered += nbytes == left;
        most -= nbytes;
    }
    return code < 0 ? code : one->delivered == count;
}

int
wm_window_await(wm_op_t *op, wm_error_t *err)
{
    int code = wm_op_wait(op, NULL, err);
    wm_op_release(op);
    return code;
}

// Waits for the operations of the targets' engines.
static int
run_flush(wm_window_t *window, wm_error_t *err)
{
    wm_op_t *op;
    if (!window->asked)
        return 0;
    window->asked = false;
    int code = wm_target_flush(window->target, -1, &op, err);
    return code < 0 ? code : wm_window_await(op, err);
}

// Waits for the stream. A rank that died makes this fail, but not before our
// work has ended, whose memory is freed then: it may be behind a stream of the
// program's that waits for this rank.
static int
run_await(wm_window_t *window, int looks, wm_error_t *err)
{
    int code = wm_coll_wait(window->comm, run_look, window, looks, err);
    bool idle = code == 0;
    for (unsigned turn = 1; !idle; ++turn) {
        wm_engine_lock();
        (void)wm_stream_failure_look(window->comm);
        wm_engine_unlock();
        wm_engine_turn(turn);
        if (wm_stream_idle(window->device, window->stream, &idle, NULL) < 0)
            break;
    }
    return code;
}

static int
run_end(wm_window_t *window, wm_error_t *err)
{
    int code = 0, failed;
    if (window->busy)
        code = run_await(
            window, window->signals ? WM_LOOKS_AT_WORDS : WM_LOOKS_AT_STREAM,
            err);
    window->busy = window->signals = false;
    for (; window->ended < window->pending_count; ++window->ended) {
        failed = code == 0 ? wm_window_deliver(&window->pending[window->ended],
                                               SIZE_MAX, err)
                           : 0;
        code = failed < 0 ? failed : code;
    }
    return code;
}

int
wm_window_complete(wm_window_t *window, wm_error_t *err)
{
    wm_error_t later;
    int code = run_end(window, err);
    wm_window_end_requests(window, code, err);
    int flushed = run_flush(window, code < 0 ? &later : err);
    return code < 0 ? code : flushed;
}

// --- arguments ----------------------------------------------------------

static bool
is_paged(const wm_window_side_t *side)
{
    return side->buffer.memory.kind == WM_MEMORY_HOST;
}

// Enqueues copies between contiguous memory and parts that kernels reach.
static int
parts_copy(const wm_window_t *window, const wm_window_layout_t *layout,
           char *packed, bool packs, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < layout->count && code == 0; ++i) {
        size_t nbytes = wm_strided_nbytes(&layout->parts[i]);
        code = wm_strided_copy_part(&layout->parts[i], 0, packed, nbytes,
                                    packs, window->device, window->stream,
                                    err);
        packed += nbytes;
    }
    return code;
}

// Takes page-locked memory in place of host memory.
static int
land_on_host(landing_t *landing, size_t nbytes, bool reads, bool writes,
             wm_error_t *err)
{
    wm_window_side_t *side = landing->side;
    wm_window_pending_t *kept = &landing->kept;
    int code = wm_pinned_alloc(nbytes, &kept->pinned, err);
    if (code < 0)
        return code;
    landing->data = kept->pinned;
    if (reads && side->layout.parts != NULL)
        code = host_pack(side->layout.parts, side->layout.count, kept->pinned,
                         err);
    else if (reads)
        memcpy(kept->pinned, side->layout.data, nbytes);
    if (!writes)
        return code;
    kept->into = side->layout.parts != NULL ? side->layout.parts[0].data
                                            : side->layout.data;
    kept->nbytes = nbytes;
    kept->parts = side->layout.parts;
    kept->count = side->layout.count;
    side->layout.parts = NULL;
    return code;
}

// Takes device memory in place of memory with gaps.
static int
land_on_device(const wm_window_t *window, landing_t *landing, size_t nbytes,
               bool reads, bool writes, wm_error_t *err)
{
    wm_window_side_t *side = landing->side;
    wm_window_pending_t *kept = &landing->kept;
    int code = wm_block_alloc(window->device, nbytes, &kept->block, err);
    if (code < 0)
        return code;
    landing->data = wm_block_pointer(kept->block);
    landing->unpacks = writes;
    return reads ? parts_copy(window, &side->layout, landing->data, true, err)
                 : 0;
}

// Finds, or makes, contiguous memory for an argument. `copied`: the driver
// copies it, which reaches any memory.
static int
land(wm_window_t *window, wm_window_side_t *side, size_t nbytes, bool reads,
     bool writes, bool copied, landing_t *landing, wm_error_t *err)
{
    *landing = (landing_t){.side = side};
    if (side == NULL || nbytes == 0)
        return 0;
    if (!wm_memory_is_reached(&side->buffer.memory, window->device))
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "an array is on GPU %d, which GPU %d of the "
                            "window does not reach: copy it to GPU %d",
                            side->buffer.memory.device, window->device,
                            window->device);
    int code = run_order(window, side, writes, err);
    if (code < 0)
        return code;
    bool dense = side->layout.parts == NULL;
    if (window->named && (is_paged(side) || (window->captured && !dense)))
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "on a stream, arrays are GPU memory or page-locked "
            "memory, in a capture without gaps: give such an "
            "array");
    if (dense && (!is_paged(side) || (copied && nbytes > PAGED_BYTES))) {
        landing->data = side->layout.data;
        return 0;
    }
    return !is_paged(side)
               ? land_on_device(window, landing, nbytes, reads, writes, err)
               : land_on_host(landing, nbytes, reads, writes, err);
}

// Keeps the memory until the work has ended.
static void
keep_landing(wm_window_t *window, landing_t *landing)
{
    wm_window_side_t *side = landing->side;
    wm_window_pending_t *kept = &landing->kept;
    if (side == NULL)
        return;
    kept->owner = side->buffer.owner;
    kept->release = side->buffer.release;
    side->buffer.owner = NULL;
    side->buffer.release = NULL;
    if (kept->parts == NULL) { // read by kernels that were launched with it
        kept->parts = side->layout.parts;
        side->layout.parts = NULL;
    }
    window->pending[window->pending_count++] = *kept;
}

// --- copies and updates -------------------------------------------------

// Returns the signal of the next kernel; its word may be NULL.
static wm_signal_t
run_signal(wm_window_t *window)
{
    if (window->named) // other kernels may signal at the same time
        return (wm_signal_t){.word = NULL};
    if (window->signal.word != NULL)
        wm_signal_renew(&window->signal);
    return window->signal;
}

static int
run_copy(wm_window_t *window, char *dst, const char *src, size_t nbytes,
         wm_error_t *err)
{
    wm_pull_params_t params;
    window->busy = true;
    window->signals = false;
    if (dst == src)
        return 0;
    if (nbytes > SHORT_BYTES)
        return wm_memory_copy(window->device, dst, src, nbytes, window->stream,
                              err);
    params.count = 1;
    params.signal = run_signal(window);
    params.pulls[0] = (wm_pull_t){.dst = dst, .src = src, .nbytes = nbytes};
    int code = wm_pull_launch(window->device, &params, window->stream, err);
    window->signals = code == 0 && params.signal.word != NULL;
    return code;
}

// An update that this rank does alone.
typedef struct {
    wm_window_t *window;
    wm_window_words_t *words;
    wm_update_t *update;
} alone_t;

static int
look_at_update(void *context, wm_error_t *err)
{
    const alone_t *alone = context;
    (void)err;
    return wm_window_lock_try_update(alone->words, alone->window->comm->rank);
}

static int
step_update(void *context, wm_error_t *err)
{
    const alone_t *alone = context;
    return wm_update_step(alone->update, alone->window->stream, err);
}

// Updates elements that hardware does not update at once, when no other rank
// does.
static int
update_alone(wm_window_t *window, int target, wm_update_t *update,
             wm_error_t *err)
{
    wm_error_t later;
    alone_t alone = {window, window->parts[target].words, update};
    if (window->named)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "on a stream, a GPU updates aligned elements of 8 "
                            "bytes at most: call the window itself, without "
                            "on(stream)");
    int code = wm_update_prepare(window->device, err);
    if (code == 0)
        code = wm_coll_wait(window->comm, look_at_update, &alone,
                            WM_LOOKS_AT_WORDS, err);
    if (code < 0)
        return code;
    code = wm_coll_wait(window->comm, step_update, &alone, WM_LOOKS_AT_STREAM,
                        err);
    int ended = run_await(window, WM_LOOKS_AT_STREAM, code < 0 ? &later : err);
    wm_window_lock_end_update(alone.words);
    return code < 0 ? code : ended;
}

static int
run_update(wm_window_t *window, const wm_window_call_t *call,
           const landing_t *landings, wm_error_t *err)
{
    bool gaps = call->layout.parts != NULL;
    const char *given = landings[0].data;
    wm_update_t update = {
        .device = window->device,
        .dst = gaps ? NULL : call->layout.data,
        .parts = call->layout.parts,
        .count = gaps ? call->layout.count : 0,
        .type = call->type,
        .op = call->op,
        .src = given != NULL ? given : landings[2].data,
        .compare = landings[1].data,
        .fetched = landings[2].data,
        .nbytes = call->nbytes,
    };
    bool alone = wm_update_is_alone(&update);
    int code = wm_update_check(update.parts, (size_t)update.count, update.type,
                               err);
    if (code < 0)
        return code;
    window->busy = true;
    window->signals = false;
    if (!alone)
        update.signal = run_signal(window);
    code = alone ? update_alone(window, call->target, &update, err)
                 : wm_update_step(&update, window->stream, err);
    window->signals = code > 0 && update.signal.word != NULL;
    wm_update_free(&update);
    return code < 0 ? code : 0;
}

static int
run_transfer(wm_window_t *window, const wm_window_call_t *call, char *packed,
             wm_error_t *err)
{
    bool gets = call->kind == WM_TARGET_GET;
    char *target = call->layout.data;
    if (call->layout.parts == NULL)
        return run_copy(window, gets ? packed : target, gets ? target : packed,
                        call->nbytes, err);
    window->busy = true;
    window->signals = false;
    return parts_copy(window, &call->layout, packed, gets, err);
}

static int
run_call(wm_window_t *window, wm_window_call_t *call, landing_t *landings,
         wm_error_t *err)
{
    bool gets = call->kind == WM_TARGET_GET;
    bool updates = call->kind >= WM_TARGET_ACCUMULATE;
    bool copied = !updates && call->layout.parts == NULL;
    int code = land(window, call->origin, call->nbytes, !gets, gets, copied,
                    &landings[0], err);
    if (code == 0)
        code = land(window, call->compare, call->nbytes, true, false, false,
                    &landings[1], err);
    if (code == 0)
        code = land(window, call->result, call->nbytes, false, true, false,
                    &landings[2], err);
    if (code == 0)
        code = updates ? run_update(window, call, landings, err)
                       : run_transfer(window, call, landings[0].data, err);
    for (int i = 0; i < ARGUMENTS && code == 0; ++i)
        if (landings[i].unpacks) {
            window->signals = false;
            code = parts_copy(window, &landings[i].side->layout,
                              landings[i].data, false, err);
        }
    return code;
}

static void
count_call(const wm_window_t *window, const wm_window_call_t *call)
{
    wm_peer_stats_t *stats = &window->comm->peers[call->target]->stats;
    wm_peer_stat_add(stats, WM_PEER_STAT_window_calls, 1);
    wm_peer_stat_add(stats, WM_PEER_STAT_window_bytes, (int64_t)call->nbytes);
}

int
wm_window_begin(wm_window_t *window, wm_window_call_t *call, wm_error_t *err)
{
    landing_t landings[ARGUMENTS] = {0};
    int code = 0;
    if (call->nbytes == 0)
        return 0;
    if (window->pending_count + ARGUMENTS > WM_WINDOW_PENDING) {
        code = run_end(window, err);
        run_drop_ended(window);
    }
    if (code == 0)
        code = run_open(window, err);
    if (code == 0)
        code = run_call(window, call, landings, err);
    if (code < 0 && window->opened) {
        window->busy = true; // packing may be under way
        window->signals = false;
    }
    for (int i = 0; i < ARGUMENTS; ++i) {
        if (code < 0)
            landings[i].kept.into = NULL;
        keep_landing(window, &landings[i]);
    }
    if (code == 0)
        count_call(window, call);
    return code;
}

// --- on a stream of the program -------------------------------------------

// Orders the producers of the arguments behind a call.
static int
run_order_after(wm_window_t *window, const wm_window_call_t *call,
                wm_error_t *err)
{
    const wm_window_side_t *sides[] = {call->origin, call->compare,
                                       call->result};
    int code = 0;
    for (int i = 0; i < ARGUMENTS && code == 0; ++i) {
        bool wrote = i == 2 || (i == 0 && call->kind == WM_TARGET_GET);
        if (sides[i] == NULL)
            continue;
        const wm_producer_t *producer = &sides[i]->buffer.producer;
        if (producer->kind == WM_PRODUCER_NONE)
            continue;
        code = wm_producer_after_on(producer, wrote, window->device,
                                    window->stream, window->captured, err);
    }
    return code;
}

// Does the call on the named stream, which is window->stream for now.
static int
run_named(wm_window_t *window, wm_window_call_t *call, CUstream own,
          wm_error_t *err)
{
    landing_t landings[ARGUMENTS] = {0};
    bool busy = window->busy;
    int code = window->captured || !busy
                   ? 0
                   : wm_stream_follow(window->device, window->stream,
                                      window->device, own, err);
    if (code == 0)
        code = run_call(window, call, landings, err);
    if (code == 0)
        code = run_order_after(window, call, err);
    window->signals = false;
    if (window->captured) {
        window->busy = busy; // nothing has begun
        return code;
    }
    window->busy = true;
    wm_error_t later;
    int followed = wm_stream_follow(window->device, own, window->device,
                                    window->stream, code < 0 ? &later : err);
    for (int i = 0; i < ARGUMENTS; ++i)
        keep_landing(window, &landings[i]);
    return code < 0 ? code : followed;
}

int
wm_window_check_stream(const wm_window_t *window, int device, wm_error_t *err)
{
    return device == window->device
               ? 0
               : wm_error_set(err, WM_ERR_VALUE, 0,
                              "stream: it is of cuda:%d, and the window works "
                              "on cuda:%d: give a stream of that GPU",
                              device, window->device);
}

int
wm_window_keep(wm_window_t *window, int device, CUstream stream,
               uint64_t *capture, wm_error_t *err)
{
    *capture = 0;
    int code = wm_stream_capture(device, stream, capture, err);
    return code < 0 || *capture == 0 ? code
                                     : wm_waiter_keep(&window->waiter, device,
                                                      stream, *capture, err);
}

int
wm_window_precede(wm_window_t *window, int device, CUstream stream,
                  wm_error_t *err)
{
    uint64_t capture = 0;
    int code = wm_window_keep(window, device, stream, &capture, err);
    if (code < 0 || capture != 0)
        return code;
    code = run_flush(window, err);
    return code < 0 || !window->busy
               ? code
               : wm_stream_follow(device, stream, window->device,
                                  window->stream, err);
}

int
wm_window_follow(wm_window_t *window, int device, CUstream stream,
                 wm_error_t *err)
{
    uint64_t capture = 0;
    int code = wm_window_keep(window, device, stream, &capture, err);
    if (code < 0 || capture != 0)
        return code;
    code = run_open(window, err);
    window->busy = true;
    window->signals = false;
    return code < 0 ? code
                    : wm_stream_follow(window->device, window->stream, device,
                                       stream, err);
}

int
wm_window_begin_on(wm_window_t *window, wm_window_call_t *call, int device,
                   CUstream stream, wm_error_t *err)
{
    uint64_t capture = 0;
    if (call->nbytes == 0)
        return 0;
    int code = wm_window_check_stream(window, device, err);
    if (code == 0)
        code = run_open(window, err);
    if (code == 0)
        code = wm_atomic_prepare(device, err);
    if (code == 0)
        code = wm_window_keep(window, device, stream, &capture, err);
    if (code == 0 && capture == 0
        && window->pending_count + ARGUMENTS > WM_WINDOW_PENDING) {
        code = run_end(window, err);
        run_drop_ended(window);
    }
    if (code < 0)
        return code;
    CUstream own = window->stream;
    window->named = true;
    window->captured = capture != 0;
    window->stream = stream;
    wm_device_stay();
    code = run_named(window, call, own, err);
    wm_device_go();
    window->stream = own;
    window->named = window->captured = false;
    return code;
}
