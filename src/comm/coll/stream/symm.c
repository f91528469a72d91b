// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/symm_state.h"

#include <stdlib.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/comm/failure.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define HALF_ALIGN ((size_t)1 << 20)
#define ENDED WM_SYMM_ENDED
#define FAR (1u << 30) // 16384 calls, further ahead than any rank
// After so many calls, a stream waits for ranks that are as many calls behind.
// Ranks that exchange no data could drift apart without this, and 16-bit call
// counters become ambiguous at half their range.
#define MOST_AHEAD 2048

_Static_assert(WM_SYMM_STEPS + 1 < ENDED, "of 16 bits");
_Static_assert(2 * MOST_AHEAD < FAR >> 16, "so far at most is who is ahead");

static int
symm_await(const wm_symm_t *symm, uint32_t call, uint32_t step,
           wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < symm->size && code == 0; ++rank)
        if (rank != symm->rank)
            code = wm_barrier_enqueue_wait(symm->barrier, rank, symm->device,
                                           symm->stream, (call << 16) + step,
                                           err);
    return code;
}

static int
symm_await_late(const wm_symm_t *symm, wm_error_t *err)
{
    uint32_t calls = symm->signatures.calls;
    return calls > MOST_AHEAD && calls % MOST_AHEAD == 0
               ? symm_await(symm, calls - MOST_AHEAD, ENDED, err)
               : 0;
}

static int
symm_arrive(const wm_symm_t *symm, uint32_t step, wm_error_t *err)
{
    return wm_barrier_enqueue_arrive(symm->barrier, symm->device, symm->stream,
                                     (symm->signatures.calls << 16) + step,
                                     err);
}

// Waits for the end of call `number`, the last one, by our own word.
static int
symm_await_last(const wm_symm_t *symm, uint32_t number, wm_error_t *err)
{
    return number == 0 ? 0
                       : wm_barrier_enqueue_wait(symm->barrier, symm->rank,
                                                 symm->device, symm->stream,
                                                 (number << 16) + ENDED, err);
}

// Orders a call after the last one: nothing to do on the same stream.
static int
symm_follow(wm_symm_t *symm, uint32_t number, CUstream stream, wm_error_t *err)
{
    uint64_t last = symm->last; // an id, as a stream's address may be reused
    symm->stream = stream;
    symm->last = wm_stream_id(symm->device, stream);
    return last != 0 && symm->last == last
               ? 0
               : symm_await_last(symm, number, err);
}

// Orders a captured call after the last one. Compares addresses of streams, as
// asking for an id would end the capture.
static int
symm_follow_captured(wm_symm_t *symm, bool first, CUstream stream,
                     wm_error_t *err)
{
    bool same = first || symm->stream == stream;
    symm->stream = stream;
    return same ? 0
                : wm_stream_wait_event(symm->device, stream, symm->ended, err);
}

// Sets our word far ahead, after call `number`, so that ranks that are ahead
// do not wait for us. If the driver fails here, too, our streams have ended,
// and the host sets the word.
static void
symm_leave(wm_symm_t *symm, uint32_t number)
{
    uint32_t value = (symm->signatures.calls << 16) + FAR;
    wm_barrier_promise(symm->barrier, value);
    if (symm_await_last(symm, number, NULL) < 0
        || wm_barrier_enqueue_arrive(symm->barrier, symm->device, symm->stream,
                                     value, NULL)
               < 0)
        wm_barrier_leave(symm->barrier, value);
}

// Does the same on a stream of ours, or at once if no call is under way.
static void
leave_by_own(wm_symm_t *symm, uint32_t number)
{
    CUstream stream;
    if (wm_barrier_have_kept(symm->barrier)) {
        uint32_t value = (symm->signatures.calls << 16) + FAR;
        wm_barrier_promise(symm->barrier, value);
        wm_barrier_leave(symm->barrier, value);
        return;
    }
    bool ours = wm_stream_acquire(symm->device, &stream, NULL) == 0;
    // The legacy stream always exists.
    symm->stream = ours ? stream : CU_STREAM_LEGACY;
    symm_leave(symm, number);
    if (ours)
        wm_stream_release(symm->device, stream);
}

// Notes that the last call has failed: no call goes on until all ranks have
// recovered.
static void
set_lost(wm_symm_t *symm)
{
    if (symm->lost.code == 0)
        symm->lost_at = symm->signatures.calls;
    wm_error_set(&symm->lost, WM_ERR_STATE, 0,
                 "an earlier collective on a stream failed on this rank, as "
                 "its error told: what came with it or behind it was not "
                 "done");
}

int
wm_symm_find_dead(const wm_symm_t *symm, wm_error_t *err)
{
    int dead = wm_barrier_dead(symm->barrier);
    if (dead < 0)
        return 0;
    // Another rank may have found the dead one first.
    (void)wm_barrier_poison(symm->barrier, dead);
    return wm_failure_set(symm->comm, dead, err);
}

int
wm_symm_begin(wm_symm_t *symm, const wm_coll_desc_t *desc, CUstream stream,
              wm_error_t *err)
{
    wm_error_t unused;
    wm_lock(&symm->lock);
    int code = wm_symm_find_dead(symm, err != NULL ? err : &unused);
    if (code < 0 && symm->lost.code == 0) {
        symm->lost = err != NULL ? *err : unused;
        symm->lost_at = 0;
        symm->stream = stream;
        symm_leave(symm, symm->signatures.calls);
    }
    if (code == 0 && symm->lost.code < 0) {
        // The call counts, as it does on all other ranks.
        (void)!wm_signatures_begin(&symm->signatures, symm->barrier, desc,
                                   NULL);
        code = symm->lost.code;
        if (err != NULL)
            *err = symm->lost;
    }
    if (code < 0) {
        pthread_mutex_unlock(&symm->lock);
        return code;
    }
    wm_barrier_promise(symm->barrier,
                       ((symm->signatures.calls + 1) << 16) + ENDED);
    code = wm_signatures_begin(&symm->signatures, symm->barrier, desc, err);
    if (code == 0 && desc != NULL
        && wm_signatures_compare(&symm->signatures, symm->barrier,
                                 &symm->lost_at, &symm->lost)
               < 0) {
        symm->stream = stream;
        symm_leave(symm, symm->signatures.calls - 1);
        code = symm->lost.code;
        if (err != NULL)
            *err = symm->lost;
        pthread_mutex_unlock(&symm->lock);
        return code;
    }
    int follows = symm_follow(symm, symm->signatures.calls - 1, stream,
                              code == 0 ? err : NULL);
    code = code < 0 ? code : follows;
    if (code == 0)
        code = symm_await_late(symm, err);
    return code < 0 ? wm_symm_end(symm, code, err) : 0;
}

int
wm_symm_begin_captured(wm_symm_t *symm, uint64_t capture, CUstream stream,
                       wm_error_t *err)
{
    wm_lock(&symm->lock);
    bool first = symm->capture != capture;
    if (first) {
        symm->capture = capture;
        symm->turns = 0;
    }
    int code = symm_follow_captured(symm, first, stream, err);
    return code < 0 ? wm_symm_end(symm, code, err) : 0;
}

uint64_t
wm_symm_stream_id(const wm_symm_t *symm)
{
    return symm->last;
}

bool
wm_symm_continue(const wm_symm_t *symm, uint64_t capture)
{
    return symm->capture == capture;
}

void
wm_symm_forget(wm_symm_t *symm)
{
    symm->capture = 0;
}

// Takes a turn in a graph. All ranks know how many fragments the call before
// had, so only the first call waits.
static int
take_turn_captured(wm_symm_t *symm, wm_error_t *err)
{
    bool first = symm->turns++ == 0;
    symm->turn = first ? 0 : symm->turn + (uint32_t)symm->fragments;
    if (!first)
        return 0;
    symm->epochs = 0;
    return wm_barrier_enqueue_round(symm->barrier, symm->device, symm->stream,
                                    err);
}

int
wm_symm_take_turn(wm_symm_t *symm, wm_error_t *err)
{
    int code = 0;
    if (symm->captured)
        code = take_turn_captured(symm, err);
    else {
        symm->turn = ++symm->turns;
        if (symm->fragments > 1) // it used this half, too
            code = symm_await(symm, symm->signatures.calls - 1, ENDED, err);
    }
    symm->fragments = 0;
    return code;
}

char *
wm_symm_at(wm_symm_t *symm, int rank, size_t fragment)
{
    symm->fragments = fragment + 1;
    return symm->memory->ranks[rank].memory
           + (symm->turn + fragment) % 2 * wm_symm_half(symm);
}

int
wm_symm_step(wm_symm_t *symm, uint32_t step, wm_error_t *err)
{
    if (symm->captured)
        return wm_barrier_enqueue_epoch(symm->barrier, symm->device,
                                        symm->stream, ++symm->epochs, err);
    int code = symm_arrive(symm, step + 1, err);
    return code < 0 ? code
                    : symm_await(symm, symm->signatures.calls, step + 1, err);
}

int
wm_symm_leave_turn(wm_symm_t *symm, wm_error_t *err)
{
    return symm->captured ? 0 : symm_arrive(symm, ENDED, err);
}

int
wm_symm_keep(wm_symm_t *symm, wm_block_t *memory, wm_error_t *err)
{
    CUevent event = NULL;
    if (symm->captured) {
        wm_block_t **more = realloc(symm->copies,
                                    (symm->copied + 1) * sizeof(*more));
        if (more == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        symm->copies = more;
        symm->copies[symm->copied++] = memory;
        return 0;
    }
    int code = wm_event_acquire(symm->device, &event, err);
    if (code == 0)
        code = wm_event_record(symm->device, event, symm->stream, err);
    if (code == 0)
        wm_block_free(memory, 1, &event, &symm->device);
    else if (event != NULL) // the memory is not freed, as its end is not known
        wm_event_release(symm->device, event);
    return code;
}

static int
enqueue_copied(wm_symm_t *symm, const wm_coll_desc_t *desc,
               const wm_kernel_coll_words_t *words, wm_error_t *err)
{
    wm_coll_desc_t given = *desc; // 2 KiB
    wm_block_t *copy;
    size_t nbytes = desc->call->receive->nbytes;
    int code = wm_block_alloc(symm->device, nbytes, &copy, err);
    if (code < 0)
        return code;
    given.source = wm_block_pointer(copy);
    code = wm_memory_copy(symm->device, given.source, desc->source, nbytes,
                          symm->stream, err);
    if (code == 0)
        code = wm_kernel_coll_enqueue(&symm->exchange, &given, words, err);
    int kept = wm_symm_keep(symm, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

int
wm_symm_exchange(wm_symm_t *symm, const wm_coll_desc_t *desc, wm_error_t *err)
{
    uint32_t call = symm->signatures.calls << 16;
    wm_word_op_t own = wm_barrier_stream_word(symm->barrier, symm->rank,
                                              call + ENDED);
    wm_kernel_coll_words_t words = {
        .own = symm->captured ? NULL : (uint32_t *)own.word,
        .begun = own.value - ENDED,
        .done = own.value,
        .call = symm->captured ? 0 : call,
    };
    return wm_coll_desc_is_overwritten(desc)
               ? enqueue_copied(symm, desc, &words, err)
               : wm_kernel_coll_enqueue(&symm->exchange, desc, &words, err);
}

int
wm_symm_end(wm_symm_t *symm, int code, wm_error_t *err)
{
    if (code == 0 && symm->captured)
        code = wm_event_record(symm->device, symm->ended, symm->stream, err);
    if (code < 0 && !symm->captured) {
        uint32_t call = symm->signatures.calls;
        set_lost(symm);
        wm_signatures_fail(symm->barrier, call, WM_SIGNATURES_REFUSED);
        symm_leave(symm, call - 1);
    }
    pthread_mutex_unlock(&symm->lock);
    return code;
}

// Raises a failure that another rank has published. Our calls fail until the
// next one recovers.
static int
symm_learn_failure(wm_symm_t *symm, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&symm->signatures, symm->barrier,
                                          &first, err);
    if (code == 0)
        return 0;
    symm->lost = *err;
    symm->lost_at = first;
    leave_by_own(symm, symm->signatures.calls);
    return code;
}

// Raises if `call`, which has ended, or a call before it has failed. The
// failure of a later call is left to whoever waits for that call.
static int
symm_look_at(wm_symm_t *symm, uint32_t call, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&symm->signatures, symm->barrier,
                                          &first, err);
    if (symm->lost.code < 0 && symm->lost_at <= call) {
        *err = symm->lost;
        return symm->lost.code;
    }
    if (code == 0 || first > call)
        return 0;
    return symm->lost.code < 0 ? code : symm_learn_failure(symm, err);
}

int
wm_symm_look(wm_symm_t *symm, wm_symm_place_t of, wm_error_t *err)
{
    int code = 0;
    if (pthread_mutex_trylock(&symm->lock) != 0)
        return 1;
    if (of.epoch == symm->epoch) {
        code = wm_symm_find_dead(symm, err);
        if (code == 0)
            code = symm_look_at(symm, of.call, err);
    }
    else if (of.epoch + 1 != symm->epoch || symm->former_at <= of.call) {
        *err = symm->former;
        code = symm->former.code;
    }
    pthread_mutex_unlock(&symm->lock);
    return code;
}

int
wm_symm_find_failure(wm_symm_t *symm, wm_error_t *err)
{
    if (symm == NULL
        || !wm_signatures_may_fail(&symm->signatures, symm->barrier))
        return 0;
    wm_lock(&symm->lock);
    int code = symm->lost.code < 0 ? 0 : symm_learn_failure(symm, err);
    pthread_mutex_unlock(&symm->lock);
    return code;
}

void
wm_symm_fail(wm_symm_t *symm)
{
    wm_lock(&symm->lock);
    set_lost(symm);
    wm_signatures_fail(symm->barrier, symm->signatures.calls,
                       WM_SIGNATURES_REFUSED);
    leave_by_own(symm, symm->signatures.calls);
    pthread_mutex_unlock(&symm->lock);
}

wm_symm_place_t
wm_symm_place(const wm_symm_t *symm)
{
    return (wm_symm_place_t){symm->epoch, symm->signatures.calls};
}

bool
wm_symm_is_lost(const wm_symm_t *symm)
{
    return symm->lost.code != 0;
}

typedef struct {
    const wm_symm_t *symm;
    const char *name;
    bool mixed;
} captures_t;

static int
look_for_captures(void *context, wm_error_t *err)
{
    captures_t *captures = context;
    const wm_symm_t *symm = captures->symm;
    return wm_signatures_all_capture(&symm->signatures, symm->barrier,
                                     captures->name, &captures->mixed, err);
}

// Refuses a captured call. With `mixed`, releases the rank that has made the
// call without a capture; that rank learns the reason from our failure.
static void
refuse_capture(wm_symm_t *symm, bool mixed)
{
    wm_lock(&symm->lock);
    wm_signatures_refuse_capture(&symm->signatures, symm->barrier, mixed);
    if (mixed) {
        uint32_t last = symm->signatures.calls;
        wm_signatures_fail(symm->barrier, last + 1, WM_SIGNATURES_CAPTURES);
        (void)!wm_signatures_begin(&symm->signatures, symm->barrier, NULL,
                                   NULL);
        if (symm->lost.code == 0)
            leave_by_own(symm, last);
        set_lost(symm);
    }
    pthread_mutex_unlock(&symm->lock);
}

int
wm_symm_arrive_captured(wm_symm_t *symm, const char *name, wm_error_t *err)
{
    captures_t captures = {symm, name, false};
    wm_lock(&symm->lock);
    wm_signatures_capture(&symm->signatures, symm->barrier);
    int code = symm->lost.code < 0 ? 0 : symm_learn_failure(symm, err);
    pthread_mutex_unlock(&symm->lock);
    if (code == 0)
        code = wm_coll_wait(symm->comm, look_for_captures, &captures,
                            WM_LOOKS_AT_WORDS, err);
    if (code < 0)
        refuse_capture(symm, captures.mixed);
    return code;
}

// Releases peers in a call in which ranks differ, as kernels may wait for each
// other in vain: we send nothing more in that call.
static void
leave_amiss(const wm_symm_t *symm)
{
    uint32_t at = wm_barrier_streams_at(symm->barrier),
             last = symm->signatures.calls;
    // If our stream is between calls, the next one counts.
    bool between = at == 0 || (at & 0xffff) == ENDED;
    uint32_t call = last - (uint16_t)(last - (at >> 16)) + between;
    if (call <= last
        && wm_signatures_differ(&symm->signatures, symm->barrier, call))
        wm_barrier_leave_from(symm->barrier, at, (call << 16) + ENDED - 1);
}

bool
wm_symm_leave(wm_symm_t *symm)
{
    bool ended = wm_barrier_have_kept(symm->barrier);
    if (ended)
        wm_barrier_leave(symm->barrier, (symm->signatures.calls << 16) + FAR);
    return ended;
}

void
wm_symm_release_peers(wm_symm_t *symm)
{
    wm_error_t unused;
    uint32_t first;
    bool ended = wm_barrier_have_kept(symm->barrier);
    if ((ended && wm_barrier_dead(symm->barrier) < 0)
        || pthread_mutex_trylock(&symm->lock) != 0)
        return;
    if (ended)
        wm_barrier_leave(symm->barrier, (symm->signatures.calls << 16) + FAR);
    else {
        if (symm->kernel_coll)
            leave_amiss(symm);
        // Publishes what only this rank can find. A later call raises it.
        if (wm_signatures_may_fail(&symm->signatures, symm->barrier))
            (void)!wm_signatures_find_failure(&symm->signatures, symm->barrier,
                                              &first, &unused);
    }
    pthread_mutex_unlock(&symm->lock);
}

int
wm_symm_device(const wm_symm_t *symm)
{
    return symm->device;
}

size_t
wm_symm_half(const wm_symm_t *symm)
{
    return symm->memory->nbytes / 2 / HALF_ALIGN * HALF_ALIGN;
}

bool
wm_symm_has_kernels(const wm_symm_t *symm)
{
    return symm->kernel_coll;
}

bool
wm_symm_is_on_host(const wm_symm_t *symm)
{
    return symm->memory->on_host;
}

const wm_thresholds_t *
wm_symm_thresholds(const wm_symm_t *symm)
{
    return &symm->thresholds;
}

bool
wm_symm_serves(const wm_symm_t *symm, int device)
{
    return symm->device == device && !wm_symm_is_lost(symm);
}
