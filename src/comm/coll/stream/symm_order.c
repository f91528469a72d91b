// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/symm_state.h"

#include "comm/node/stream_words.h"
#include "cuda/event.h"
#include "cuda/stream.h"

#define ENDED WM_SYMM_ENDED
#define FAR (1u << 30) // 16384 calls, further ahead than any rank
// After so many calls, a stream waits for ranks that are as many calls behind.
// Ranks that exchange no data could drift apart without this, and 16-bit call
// counters become ambiguous at half their range.
#define MOST_AHEAD 2048

_Static_assert(WM_SYMM_STEPS + 1 < ENDED, "of 16 bits");
_Static_assert(2 * MOST_AHEAD < FAR >> 16, "so far at most is who is ahead");

int
wm_symm_await(const wm_symm_t *symm, uint32_t call, uint32_t step,
              wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < symm->size && code == 0; ++rank)
        if (rank != symm->rank)
            code = wm_stream_word_enqueue_wait(symm->barrier, rank,
                                               symm->device, symm->stream,
                                               (call << 16) + step, err);
    return code;
}

int
wm_symm_await_late(const wm_symm_t *symm, wm_error_t *err)
{
    uint32_t calls = symm->signatures.calls;
    return calls > MOST_AHEAD && calls % MOST_AHEAD == 0
               ? wm_symm_await(symm, calls - MOST_AHEAD, ENDED, err)
               : 0;
}

int
wm_symm_arrive(const wm_symm_t *symm, uint32_t step, wm_error_t *err)
{
    return wm_stream_word_enqueue_arrive(
        symm->barrier, symm->device, symm->stream,
        (symm->signatures.calls << 16) + step, err);
}

// Waits for the end of call `number`, the last one, by our own word.
static int
symm_await_last(const wm_symm_t *symm, uint32_t number, wm_error_t *err)
{
    return number == 0
               ? 0
               : wm_stream_word_enqueue_wait(symm->barrier, symm->rank,
                                             symm->device, symm->stream,
                                             (number << 16) + ENDED, err);
}

int
wm_symm_follow(wm_symm_t *symm, uint32_t number, CUstream stream,
               wm_error_t *err)
{
    uint64_t last = symm->last; // an id, as a stream's address may be reused
    symm->stream = stream;
    symm->last = wm_stream_id(symm->device, stream);
    return last != 0 && symm->last == last
               ? 0
               : symm_await_last(symm, number, err);
}

int
wm_symm_follow_captured(wm_symm_t *symm, bool first, CUstream stream,
                        wm_error_t *err)
{
    bool same = first || symm->stream == stream;
    symm->stream = stream;
    return same ? 0
                : wm_stream_wait_event(symm->device, stream, symm->ended, err);
}

static uint32_t
far_ahead(const wm_symm_t *symm)
{
    return (symm->signatures.calls << 16) + FAR;
}

void
wm_symm_leave_after(wm_symm_t *symm, uint32_t number)
{
    uint32_t value = far_ahead(symm);
    wm_stream_word_promise(symm->barrier, value);
    if (symm_await_last(symm, number, NULL) < 0
        || wm_stream_word_enqueue_arrive(symm->barrier, symm->device,
                                         symm->stream, value, NULL)
               < 0)
        wm_stream_word_leave(symm->barrier, value);
}

void
wm_symm_leave_by_host(wm_symm_t *symm)
{
    wm_stream_word_leave(symm->barrier, far_ahead(symm));
}

void
wm_symm_leave_by_own(wm_symm_t *symm, uint32_t number)
{
    CUstream stream;
    if (wm_stream_word_is_kept(symm->barrier)) {
        wm_stream_word_promise(symm->barrier, far_ahead(symm));
        wm_symm_leave_by_host(symm);
        return;
    }
    bool ours = wm_stream_acquire(symm->device, &stream, NULL) == 0;
    // The legacy stream always exists.
    symm->stream = ours ? stream : CU_STREAM_LEGACY;
    wm_symm_leave_after(symm, number);
    if (ours)
        wm_stream_release(symm->device, stream);
}
