// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/slab_state.h"

#include <stdlib.h>

#include "comm/coll/await.h"
#include "comm/comm/failure.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define HALF_ALIGN ((size_t)1 << 20)
#define ENDED WM_SLAB_ENDED
#define FAR (1u << 30) // 16384 calls, further than anybody is ahead
// Calls after which a stream waits for who is as far behind: ranks that give
// each other nothing would not, and words that count calls cannot tell who is
// half their range behind from who is ahead.
#define MOST_AHEAD 2048

_Static_assert(WM_SLAB_STEPS + 1 < ENDED, "of 16 bits");
_Static_assert(2 * MOST_AHEAD < FAR >> 16, "so far at most is who is ahead");

static int
await(const wm_slabs_t *slabs, uint32_t call, uint32_t step, wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < slabs->size && code == 0; ++rank)
        if (rank != slabs->rank)
            code = wm_barrier_enqueue_wait(slabs->barrier, rank, slabs->device,
                                           slabs->stream, (call << 16) + step,
                                           err);
    return code;
}

static int
await_late(const wm_slabs_t *slabs, wm_error_t *err)
{
    uint32_t calls = slabs->signatures.calls;
    return calls > MOST_AHEAD && calls % MOST_AHEAD == 0
               ? await(slabs, calls - MOST_AHEAD, ENDED, err)
               : 0;
}

static int
arrive(const wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    return wm_barrier_enqueue_arrive(
        slabs->barrier, slabs->device, slabs->stream,
        (slabs->signatures.calls << 16) + step, err);
}

// Behind the last call, of that number: our word tells that it has ended.
static int
await_last(const wm_slabs_t *slabs, uint32_t number, wm_error_t *err)
{
    return number == 0 ? 0
                       : wm_barrier_enqueue_wait(slabs->barrier, slabs->rank,
                                                 slabs->device, slabs->stream,
                                                 (number << 16) + ENDED, err);
}

// Likewise, or on its stream.
static int
follow(wm_slabs_t *slabs, uint32_t number, CUstream stream, wm_error_t *err)
{
    uint64_t last = slabs->last; // it may be gone, and its address another's
    slabs->stream = stream;
    slabs->last = wm_stream_id(slabs->device, stream);
    return last != 0 && slabs->last == last ? 0
                                            : await_last(slabs, number, err);
}

// Not by its id within a capture, which asking for that would end.
static int
follow_captured(wm_slabs_t *slabs, bool first, CUstream stream,
                wm_error_t *err)
{
    bool same = first || slabs->stream == stream;
    slabs->stream = stream;
    return same ? 0
                : wm_stream_wait_event(slabs->device, stream, slabs->ended,
                                       err);
}

// There will be no more of it on this rank, for which others wait that are
// ahead: behind the call of that number. Where the driver fails in that as
// well, its streams have ended.
static void
leave(wm_slabs_t *slabs, uint32_t number)
{
    uint32_t value = (slabs->signatures.calls << 16) + FAR;
    wm_barrier_promise(slabs->barrier, value);
    if (await_last(slabs, number, NULL) < 0
        || wm_barrier_enqueue_arrive(slabs->barrier, slabs->device,
                                     slabs->stream, value, NULL)
               < 0)
        wm_barrier_leave(slabs->barrier, value);
}

// The same on a stream of ours, or at once if no call is under way.
static void
leave_by_own(wm_slabs_t *slabs, uint32_t number)
{
    CUstream stream;
    if (wm_barrier_have_kept(slabs->barrier)) {
        uint32_t value = (slabs->signatures.calls << 16) + FAR;
        wm_barrier_promise(slabs->barrier, value);
        wm_barrier_leave(slabs->barrier, value);
        return;
    }
    bool ours = wm_stream_acquire(slabs->device, &stream, NULL) == 0;
    slabs->stream = ours ? stream : CU_STREAM_LEGACY; // which there always is
    leave(slabs, number);
    if (ours)
        wm_stream_release(slabs->device, stream);
}

// The last call has failed: nothing more goes here until all ranks have
// recovered.
static void
set_lost(wm_slabs_t *slabs)
{
    if (slabs->lost.code == 0)
        slabs->lost_at = slabs->signatures.calls;
    wm_error_set(&slabs->lost, WM_ERR_STATE, 0,
                 "an earlier collective on a stream failed on this rank, as "
                 "its error told: what came with it or behind it was not "
                 "done");
}

int
wm_slabs_find_dead(const wm_slabs_t *slabs, wm_error_t *err)
{
    int dead = wm_barrier_dead(slabs->barrier);
    if (dead < 0)
        return 0;
    (void)wm_barrier_bury(slabs->barrier, dead); // another may have found it
    return wm_failure_set(slabs->comm, dead, err);
}

int
wm_slabs_begin(wm_slabs_t *slabs, const wm_laid_t *laid, CUstream stream,
               wm_error_t *err)
{
    wm_error_t unused;
    wm_lock(&slabs->lock);
    int code = wm_slabs_find_dead(slabs, err != NULL ? err : &unused);
    if (code < 0 && slabs->lost.code == 0) {
        slabs->lost = err != NULL ? *err : unused;
        slabs->lost_at = 0;
        slabs->stream = stream;
        leave(slabs, slabs->signatures.calls);
    }
    if (code == 0 && slabs->lost.code < 0) {
        // It counts, as it does on all others.
        (void)!wm_signatures_begin(&slabs->signatures, slabs->barrier, laid,
                                   NULL);
        code = slabs->lost.code;
        if (err != NULL)
            *err = slabs->lost;
    }
    if (code < 0) {
        pthread_mutex_unlock(&slabs->lock);
        return code;
    }
    wm_barrier_promise(slabs->barrier,
                       ((slabs->signatures.calls + 1) << 16) + ENDED);
    code = wm_signatures_begin(&slabs->signatures, slabs->barrier, laid, err);
    if (code == 0 && laid != NULL
        && wm_signatures_compare(&slabs->signatures, slabs->barrier,
                                 &slabs->lost_at, &slabs->lost)
               < 0) {
        slabs->stream = stream;
        leave(slabs, slabs->signatures.calls - 1);
        code = slabs->lost.code;
        if (err != NULL)
            *err = slabs->lost;
        pthread_mutex_unlock(&slabs->lock);
        return code;
    }
    int follows = follow(slabs, slabs->signatures.calls - 1, stream,
                         code == 0 ? err : NULL);
    code = code < 0 ? code : follows;
    if (code == 0)
        code = await_late(slabs, err);
    return code < 0 ? wm_slabs_end(slabs, code, err) : 0;
}

int
wm_slabs_begin_captured(wm_slabs_t *slabs, uint64_t capture, CUstream stream,
                        wm_error_t *err)
{
    wm_lock(&slabs->lock);
    bool first = slabs->capture != capture;
    if (first) {
        slabs->capture = capture;
        slabs->turns = 0;
    }
    int code = follow_captured(slabs, first, stream, err);
    return code < 0 ? wm_slabs_end(slabs, code, err) : 0;
}

uint64_t
wm_slabs_stream_id(const wm_slabs_t *slabs)
{
    return slabs->last;
}

bool
wm_slabs_continue(const wm_slabs_t *slabs, uint64_t capture)
{
    return slabs->capture == capture;
}

void
wm_slabs_forget(wm_slabs_t *slabs)
{
    slabs->capture = 0;
}

// Of a graph all know how many pieces the call before had, and nobody waits.
static int
take_turn_captured(wm_slabs_t *slabs, wm_error_t *err)
{
    bool first = slabs->turns++ == 0;
    slabs->turn = first ? 0 : slabs->turn + (uint32_t)slabs->pieces;
    if (!first)
        return 0;
    slabs->epochs = 0;
    return wm_barrier_enqueue_round(slabs->barrier, slabs->device,
                                    slabs->stream, err);
}

int
wm_slabs_take_turn(wm_slabs_t *slabs, wm_error_t *err)
{
    int code = 0;
    if (slabs->captured)
        code = take_turn_captured(slabs, err);
    else {
        slabs->turn = ++slabs->turns;
        if (slabs->pieces > 1) // it used a half twice
            code = await(slabs, slabs->signatures.calls - 1, ENDED, err);
    }
    slabs->pieces = 0;
    return code;
}

char *
wm_slabs_at(wm_slabs_t *slabs, int rank, size_t piece)
{
    slabs->pieces = piece + 1;
    return slabs->shared->ranks[rank].memory
           + (slabs->turn + piece) % 2 * wm_slabs_half(slabs);
}

int
wm_slabs_step(wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    if (slabs->captured)
        return wm_barrier_enqueue_epoch(slabs->barrier, slabs->device,
                                        slabs->stream, ++slabs->epochs, err);
    int code = arrive(slabs, step + 1, err);
    return code < 0 ? code
                    : await(slabs, slabs->signatures.calls, step + 1, err);
}

int
wm_slabs_leave_turn(wm_slabs_t *slabs, wm_error_t *err)
{
    return slabs->captured ? 0 : arrive(slabs, ENDED, err);
}

int
wm_slabs_keep(wm_slabs_t *slabs, wm_block_t *memory, wm_error_t *err)
{
    CUevent event = NULL;
    if (slabs->captured) {
        wm_block_t **more = realloc(slabs->copies,
                                    (slabs->copied + 1) * sizeof(*more));
        if (more == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        slabs->copies = more;
        slabs->copies[slabs->copied++] = memory;
        return 0;
    }
    int code = wm_event_acquire(slabs->device, &event, err);
    if (code == 0)
        code = wm_event_record(slabs->device, event, slabs->stream, err);
    if (code == 0)
        wm_block_free(memory, 1, &event, &slabs->device);
    else if (event != NULL) // it is left, as nobody knows its end
        wm_event_release(slabs->device, event);
    return code;
}

static int
enqueue_copied(wm_slabs_t *slabs, const wm_laid_t *laid,
               const wm_by_kernels_words_t *words, wm_error_t *err)
{
    wm_laid_t given = *laid; // 2 KiB
    wm_block_t *copy;
    size_t nbytes = laid->call->receive->nbytes;
    int code = wm_block_alloc(slabs->device, nbytes, &copy, err);
    if (code < 0)
        return code;
    given.source = wm_block_pointer(copy);
    code = wm_memory_copy(slabs->device, given.source, laid->source, nbytes,
                          slabs->stream, err);
    if (code == 0)
        code = wm_by_kernels_enqueue(&slabs->exchange, &given, words, err);
    int kept = wm_slabs_keep(slabs, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

int
wm_slabs_exchange(wm_slabs_t *slabs, const wm_laid_t *laid, wm_error_t *err)
{
    uint32_t call = slabs->signatures.calls << 16;
    wm_word_op_t own = wm_barrier_stream_word(slabs->barrier, slabs->rank,
                                              call + ENDED);
    wm_by_kernels_words_t words = {
        .own = slabs->captured ? NULL : (uint32_t *)own.word,
        .begun = own.value - ENDED,
        .done = own.value,
        .call = slabs->captured ? 0 : call,
    };
    return wm_laid_is_overwritten(laid)
               ? enqueue_copied(slabs, laid, &words, err)
               : wm_by_kernels_enqueue(&slabs->exchange, laid, &words, err);
}

int
wm_slabs_end(wm_slabs_t *slabs, int code, wm_error_t *err)
{
    if (code == 0 && slabs->captured)
        code = wm_event_record(slabs->device, slabs->ended, slabs->stream,
                               err);
    if (code < 0 && !slabs->captured) {
        uint32_t call = slabs->signatures.calls;
        set_lost(slabs);
        wm_signatures_fail(slabs->barrier, call, WM_SIGNATURES_REFUSED);
        leave(slabs, call - 1);
    }
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

// From now on this rank publishes the failure that another rank has published.
static int
hear(wm_slabs_t *slabs, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&slabs->signatures, slabs->barrier,
                                          &first, err);
    if (code == 0)
        return 0;
    slabs->lost = *err;
    slabs->lost_at = first;
    leave_by_own(slabs, slabs->signatures.calls);
    return code;
}

// Raises if `call`, which has ended, or a call before it has failed. The
// failure of a later call is left to whoever waits for that call.
static int
look_at(wm_slabs_t *slabs, uint32_t call, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&slabs->signatures, slabs->barrier,
                                          &first, err);
    if (slabs->lost.code < 0 && slabs->lost_at <= call) {
        *err = slabs->lost;
        return slabs->lost.code;
    }
    if (code == 0 || first > call)
        return 0;
    return slabs->lost.code < 0 ? code : hear(slabs, err);
}

int
wm_slabs_look(wm_slabs_t *slabs, wm_slabs_place_t of, wm_error_t *err)
{
    int code = 0;
    if (pthread_mutex_trylock(&slabs->lock) != 0)
        return 1;
    if (of.epoch == slabs->epoch) {
        code = wm_slabs_find_dead(slabs, err);
        if (code == 0)
            code = look_at(slabs, of.call, err);
    }
    else if (of.epoch + 1 != slabs->epoch || slabs->former_at <= of.call) {
        *err = slabs->former;
        code = slabs->former.code;
    }
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

int
wm_slabs_hear(wm_slabs_t *slabs, wm_error_t *err)
{
    if (slabs == NULL
        || !wm_signatures_may_fail(&slabs->signatures, slabs->barrier))
        return 0;
    wm_lock(&slabs->lock);
    int code = slabs->lost.code < 0 ? 0 : hear(slabs, err);
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

void
wm_slabs_fail(wm_slabs_t *slabs)
{
    wm_lock(&slabs->lock);
    set_lost(slabs);
    wm_signatures_fail(slabs->barrier, slabs->signatures.calls,
                       WM_SIGNATURES_REFUSED);
    leave_by_own(slabs, slabs->signatures.calls);
    pthread_mutex_unlock(&slabs->lock);
}

wm_slabs_place_t
wm_slabs_place(const wm_slabs_t *slabs)
{
    return (wm_slabs_place_t){slabs->epoch, slabs->signatures.calls};
}

bool
wm_slabs_are_lost(const wm_slabs_t *slabs)
{
    return slabs->lost.code != 0;
}

typedef struct {
    const wm_slabs_t *slabs;
    const char *name;
    bool mixed;
} captures_t;

static int
look_for_captures(void *context, wm_error_t *err)
{
    captures_t *captures = context;
    const wm_slabs_t *slabs = captures->slabs;
    return wm_signatures_all_capture(&slabs->signatures, slabs->barrier,
                                     captures->name, &captures->mixed, err);
}

// It is refused. Whoever has made it without a capture is let go, and hears
// why, as of a call that has failed here.
static void
refuse_capture(wm_slabs_t *slabs, bool mixed)
{
    wm_lock(&slabs->lock);
    wm_signatures_refuse_capture(&slabs->signatures, slabs->barrier, mixed);
    if (mixed) {
        uint32_t last = slabs->signatures.calls;
        wm_signatures_fail(slabs->barrier, last + 1, WM_SIGNATURES_CAPTURES);
        (void)!wm_signatures_begin(&slabs->signatures, slabs->barrier, NULL,
                                   NULL);
        if (slabs->lost.code == 0)
            leave_by_own(slabs, last);
        set_lost(slabs);
    }
    pthread_mutex_unlock(&slabs->lock);
}

int
wm_slabs_arrive_captured(wm_slabs_t *slabs, const char *name, wm_error_t *err)
{
    captures_t captures = {slabs, name, false};
    wm_lock(&slabs->lock);
    wm_signatures_capture(&slabs->signatures, slabs->barrier);
    int code = slabs->lost.code < 0 ? 0 : hear(slabs, err);
    pthread_mutex_unlock(&slabs->lock);
    if (code == 0)
        code = wm_coll_await(slabs->comm, look_for_captures, &captures,
                             WM_LOOKS_AT_WORDS, err);
    if (code < 0)
        refuse_capture(slabs, captures.mixed);
    return code;
}

// Kernels may wait for each other in vain in a call that not all were asked
// for alike: we give nothing more in it.
static void
leave_amiss(const wm_slabs_t *slabs)
{
    uint32_t at = wm_barrier_streams_at(slabs->barrier),
             last = slabs->signatures.calls;
    bool between = at == 0 || (at & 0xffff) == ENDED; // of that call the next
    uint32_t call = last - (uint16_t)(last - (at >> 16)) + between;
    if (call <= last
        && wm_signatures_differ(&slabs->signatures, slabs->barrier, call))
        wm_barrier_leave_from(slabs->barrier, at, (call << 16) + ENDED - 1);
}

bool
wm_slabs_leave(wm_slabs_t *slabs)
{
    bool ended = wm_barrier_have_kept(slabs->barrier);
    if (ended)
        wm_barrier_leave(slabs->barrier,
                         (slabs->signatures.calls << 16) + FAR);
    return ended;
}

void
wm_slabs_give_up(wm_slabs_t *slabs)
{
    wm_error_t unused;
    uint32_t first;
    bool ended = wm_barrier_have_kept(slabs->barrier);
    if ((ended && wm_barrier_dead(slabs->barrier) < 0)
        || pthread_mutex_trylock(&slabs->lock) != 0)
        return;
    if (ended)
        wm_barrier_leave(slabs->barrier,
                         (slabs->signatures.calls << 16) + FAR);
    else {
        if (slabs->by_kernels)
            leave_amiss(slabs);
        // The others hear of what can be known here, and this rank when it
        // looks itself.
        if (wm_signatures_may_fail(&slabs->signatures, slabs->barrier))
            (void)!wm_signatures_find_failure(&slabs->signatures,
                                              slabs->barrier, &first, &unused);
    }
    pthread_mutex_unlock(&slabs->lock);
}

int
wm_slabs_device(const wm_slabs_t *slabs)
{
    return slabs->device;
}

size_t
wm_slabs_half(const wm_slabs_t *slabs)
{
    return slabs->shared->nbytes / 2 / HALF_ALIGN * HALF_ALIGN;
}

bool
wm_slabs_have_kernels(const wm_slabs_t *slabs)
{
    return slabs->by_kernels;
}

bool
wm_slabs_are_on_host(const wm_slabs_t *slabs)
{
    return slabs->shared->on_host;
}

const wm_thresholds_t *
wm_slabs_thresholds(const wm_slabs_t *slabs)
{
    return &slabs->thresholds;
}

bool
wm_slabs_serve(const wm_slabs_t *slabs, int device)
{
    return slabs->device == device && !wm_slabs_are_lost(slabs);
}
