// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/symm_state.h"

#include "comm/node/stream_words.h"
#include "cuda/event.h"
#include "cuda/lock.h"

#define HALF_ALIGN ((size_t)1 << 20)
#define ENDED WM_SYMM_ENDED
#define MOST_TURNS 4096 // of a graph, between two rounds

int
wm_symm_begin(wm_symm_t *symm, const wm_coll_desc_t *desc, CUstream stream,
              wm_error_t *err)
{
    wm_error_t own;
    err = err != NULL ? err : &own;
    wm_lock(&symm->lock);
    int code = wm_symm_find_dead(symm, err);
    if (code < 0 && symm->lost.code == 0) {
        symm->lost = *err;
        symm->lost_at = 0;
        symm->stream = stream;
        wm_symm_leave_after(symm, symm->signatures.calls);
    }
    if (code == 0 && symm->lost.code < 0) {
        // The call counts, as it does on all other ranks.
        (void)!wm_signatures_begin(&symm->signatures, desc, NULL);
        *err = symm->lost;
        code = err->code;
    }
    if (code < 0) {
        pthread_mutex_unlock(&symm->lock);
        return code;
    }
    wm_stream_word_promise(symm->barrier,
                           ((symm->signatures.calls + 1) << 16) + ENDED);
    code = wm_signatures_begin(&symm->signatures, desc, err);
    if (code == 0 && desc != NULL
        && wm_signatures_compare(&symm->signatures, &symm->lost_at,
                                 &symm->lost)
               < 0) {
        symm->stream = stream;
        wm_symm_leave_after(symm, symm->signatures.calls - 1);
        *err = symm->lost;
        pthread_mutex_unlock(&symm->lock);
        return err->code;
    }
    int follows = wm_symm_follow(symm, symm->signatures.calls - 1, stream,
                                 code == 0 ? err : NULL);
    code = code < 0 ? code : follows;
    if (code == 0)
        code = wm_symm_await_late(symm, err);
    return code < 0 ? wm_symm_finish(symm, code, err) : 0;
}

void
wm_symm_count_capture(wm_symm_t *symm, uint64_t capture)
{
    symm->captures += symm->counted != capture;
    symm->counted = capture;
}

int
wm_symm_begin_captured(wm_symm_t *symm, uint64_t capture, CUstream stream,
                       wm_error_t *err)
{
    wm_lock(&symm->lock);
    wm_symm_count_capture(symm, capture);
    bool first = symm->capture != capture;
    if (first) {
        symm->capture = capture;
        symm->turns = symm->marks = 0;
    }
    int code = wm_symm_find_dead(symm, err);
    if (code == 0)
        code = wm_symm_follow_captured(symm, first, stream, err);
    return code < 0 ? wm_symm_finish(symm, code, err) : 0;
}

// Takes a turn in a graph, whose turns count from a round on. Words of a turn
// are below poison.
static int
take_turn_captured(wm_symm_t *symm, wm_error_t *err)
{
    bool again = symm->turns % MOST_TURNS == 0;
    if (again)
        symm->turns = 0;
    uint32_t last = symm->turns++;
    symm->turn = symm->turns;
    return again ? wm_graph_words_enqueue_round(symm->barrier, symm->device,
                                                symm->stream, symm->captures,
                                                err)
           : symm->fragments > 1 // it used this half, too
               ? wm_graph_words_enqueue_wait(symm->barrier, symm->device,
                                             symm->stream,
                                             (last << 16) + ENDED, err)
               : 0;
}

int
wm_symm_begin_turn(wm_symm_t *symm, wm_error_t *err)
{
    int code = 0;
    if (symm->captured)
        code = take_turn_captured(symm, err);
    else {
        symm->turn = ++symm->turns;
        if (symm->fragments > 1) // it used this half, too
            code = wm_symm_await(symm, symm->signatures.calls - 1, ENDED, err);
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
        return wm_graph_words_enqueue_epoch(
            symm->barrier, symm->device, symm->stream,
            (symm->turns << 16) + step + 1, err);
    int code = wm_symm_arrive(symm, step + 1, err);
    return code < 0
               ? code
               : wm_symm_await(symm, symm->signatures.calls, step + 1, err);
}

int
wm_symm_leave_turn(wm_symm_t *symm, bool varies, wm_error_t *err)
{
    if (!symm->captured)
        return wm_symm_arrive(symm, ENDED, err);
    return varies || symm->fragments > 1 ? wm_graph_words_enqueue_arrive(
               symm->barrier, symm->device, symm->stream,
               (symm->turns << 16) + ENDED, err)
                                         : 0;
}

int
wm_symm_keep(wm_symm_t *symm, wm_block_t *memory, wm_error_t *err)
{
    CUevent event = NULL;
    if (symm->captured)
        return wm_graph_memory_keep(symm->device, symm->stream, memory, err);
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
        code = wm_kernel_coll_enqueue(&symm->kernels, &given, words, err);
    int kept = wm_symm_keep(symm, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

int
wm_symm_enqueue_kernel(wm_symm_t *symm, const wm_coll_desc_t *desc,
                       wm_error_t *err)
{
    uint32_t call = symm->signatures.calls << 16;
    wm_word_op_t own = wm_stream_word_op(symm->barrier, symm->rank,
                                         call + ENDED);
    wm_kernel_coll_words_t words = {
        .own = symm->captured ? NULL : (uint32_t *)own.word,
        .begun = own.value - ENDED,
        .done = symm->captured ? symm->captures : own.value,
        .call = symm->captured ? WM_LL_IN_GRAPH : call,
    };
    return wm_coll_desc_is_overwritten(desc)
               ? enqueue_copied(symm, desc, &words, err)
               : wm_kernel_coll_enqueue(&symm->kernels, desc, &words, err);
}

int
wm_symm_finish(wm_symm_t *symm, int code, wm_error_t *err)
{
    if (code == 0 && symm->captured)
        code = wm_event_record(symm->device, symm->ended, symm->stream, err);
    if (code == 0 && symm->captured)
        wm_graph_words_capture(symm->barrier, symm->captures);
    if (code < 0 && symm->captured)
        symm->capture = 0;
    else if (code < 0) {
        uint32_t call = symm->signatures.calls;
        wm_symm_set_lost(symm);
        wm_signatures_fail(&symm->signatures, call, WM_SIGNATURES_REFUSED);
        wm_symm_leave_after(symm, call - 1);
    }
    pthread_mutex_unlock(&symm->lock);
    return code;
}

uint64_t
wm_symm_place(const wm_symm_t *symm)
{
    return (uint64_t)symm->epoch << 32 | symm->signatures.calls;
}

size_t
wm_symm_half(const wm_symm_t *symm)
{
    return symm->memory->nbytes / 2 / HALF_ALIGN * HALF_ALIGN;
}

const wm_thresholds_t *
wm_symm_thresholds(const wm_symm_t *symm)
{
    return &symm->thresholds;
}

bool
wm_symm_serves(const wm_symm_t *symm, int device)
{
    return symm->device == device && symm->lost.code == 0;
}
