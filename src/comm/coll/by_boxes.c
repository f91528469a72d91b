// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/by_boxes.h"

#include <stdio.h>
#include <stdlib.h>

#include "array/signal.h"
#include "comm/coll/await.h"
#include "comm/coll/by_kernels.h"
#include "comm/engine/stats.h"
#include "comm/node/gate.h"
#include "cuda/stream.h"

#define LOOKS 20000           // at a word, before there is an operation
#define LOOKS_AT_OTHERS 64    // looks, before it is asked whether one failed
#define LOOKS_AT_STREAM 65536 // likewise, whether the kernel did
#define ENDED 2               // a step of the meeting
#define STOPPED 64            // more than any way of a kernel
#define BEFORE 64             // a word that has ended, when another begins

struct wm_by_boxes {
    wm_shared_t *shared;
    wm_by_kernels_t exchange;
    wm_signal_t ended; // of the kernel; its word tells nothing else
    wm_signal_t stop;  // whose word it looks at
    bool is_lost;
};

static void
discard(wm_by_boxes_t *boxes)
{
    wm_shared_free(boxes->shared);
    if (boxes->ended.word != NULL)
        wm_signal_release(&boxes->ended);
    if (boxes->stop.word != NULL)
        wm_signal_release(&boxes->stop);
    boxes->shared = NULL;
    boxes->ended.word = boxes->stop.word = NULL;
}

void
wm_by_boxes_free(wm_by_boxes_t *boxes)
{
    if (boxes != NULL)
        discard(boxes);
    free(boxes);
}

uint8_t
wm_by_boxes_state(const wm_comm_t *comm, const wm_coll_t *call,
                  const wm_native_t *native)
{
    const wm_buffer_t *sides[] = {call->send, call->receive};
    const wm_by_boxes_t *boxes = comm->by_boxes;
    bool copied = native->said.overwrites && !native->said.in_place;
    if (!native->capable || comm->size < 2 || copied)
        return WM_BOXES_NONE;
    for (int i = 0; i < 2; ++i)
        if (sides[i] != NULL && sides[i]->nbytes > 0
            && (!wm_buffer_on_device(sides[i]) || sides[i]->pattern != NULL))
            return WM_BOXES_NONE;
    if (boxes == NULL)
        return WM_BOXES_UNTRIED;
    return boxes->shared != NULL && !boxes->is_lost
                   && boxes->shared->device == native->device
               ? WM_BOXES_OPEN
               : WM_BOXES_NONE;
}

bool
wm_by_boxes_are(const wm_native_t *native, wm_boxes_state_t state)
{
    bool are = true;
    for (int rank = 0; rank < native->comm->size && are; ++rank) {
        const wm_said_t *said = wm_agree_said(native->gates, rank);
        are = said->boxes == (uint8_t)state;
    }
    return are;
}

static int
make(wm_comm_t *comm, int device, wm_by_boxes_t *boxes, wm_error_t *err)
{
    wm_boxes_rank_t ranks[WM_BOXES_RANKS];
    bool unreached = false, all = true;
    int code = wm_shared_make(comm, device, WM_BY_KERNELS_SHORT_BYTES,
                              wm_by_kernels_clear_short, &boxes->shared,
                              &unreached, err);
    if (code < 0 || unreached)
        return code < 0 ? code : 1;
    all = wm_signal_acquire(&boxes->ended) && wm_signal_acquire(&boxes->stop)
          && boxes->shared->blocks > 0;
    for (int rank = 0; rank < comm->size && all; ++rank)
        ranks[rank] = (wm_boxes_rank_t){
            .word = boxes->stop.word,
            .base = boxes->stop.value,
        };
    if (all)
        code = wm_by_kernels_open(&boxes->exchange, boxes->shared, false,
                                  ranks, comm->rank, err);
    if (code == 0 && all)
        code = wm_by_kernels_prepare(device, err);
    code = wm_shared_tell(comm, code, &unreached, &all, err);
    return code < 0 || all ? code : 1;
}

void
wm_by_boxes_open(wm_comm_t *comm, const wm_native_t *native, bool untried)
{
    wm_error_t err;
    if (!untried)
        return;
    wm_by_boxes_t *boxes = calloc(1, sizeof *boxes);
    bool unreached = false, all = boxes != NULL;
    int code = wm_shared_tell(comm, 0, &unreached, &all, &err);
    if (code == 0 && all)
        code = make(comm, native->device, boxes, &err);
    if (boxes != NULL && (code != 0 || !all))
        discard(boxes);
    comm->by_boxes = boxes;
}

// A call that is under way.
typedef struct {
    wm_comm_t *comm;
    const wm_native_t *native;
    CUstream stream;
    unsigned looks;
} run_t;

// Whether another failed after all had agreed.
static int
look_at_others(const run_t *run, wm_error_t *err)
{
    const wm_native_t *native = run->native;
    for (int rank = 0; rank < run->comm->size; ++rank) {
        const wm_said_t *said = wm_agree_said(native->gates, rank);
        const volatile uint8_t *failed = &said->failed;
        if (*failed == 0)
            continue;
        atomic_thread_fence(memory_order_acquire);
        return wm_error_set(err, said->code, said->detail,
                            "rank %d failed in this collective: %.150s", rank,
                            said->text);
    }
    return 0;
}

static int
look(void *context, wm_error_t *err)
{
    run_t *run = context;
    bool idle = false;
    int code = 0;
    if (wm_signal_is_set(&run->comm->by_boxes->ended))
        return 1;
    ++run->looks;
    if (run->looks % LOOKS_AT_OTHERS == 0)
        code = look_at_others(run, err);
    if (code == 0 && run->looks % LOOKS_AT_STREAM == 0)
        code = wm_stream_idle(run->native->device, run->stream, &idle, err);
    return code;
}

static void
tell_failure(const wm_native_t *native, const wm_error_t *err)
{
    wm_said_t *mine = wm_agree_mine(native->gates);
    mine->code = err->code;
    mine->detail = err->detail;
    snprintf(mine->text, sizeof mine->text, "%s", err->text);
    atomic_thread_fence(memory_order_release);
    mine->failed = 1;
}

// What came before is not undone: there are no boxes any more.
static void
lose(wm_by_boxes_t *boxes, int device, CUstream stream)
{
    atomic_store((_Atomic uint32_t *)boxes->stop.word,
                 boxes->stop.value + STOPPED);
    if (stream != NULL)
        (void)!wm_stream_synchronize(device, stream, NULL);
    boxes->is_lost = true;
}

// All hear whether one has failed, and have no boxes then.
static int
meet_at_end(const run_t *run, int code, wm_error_t *err)
{
    wm_error_t later;
    wm_gates_reach(run->native->gates, ENDED);
    int met = wm_coll_await_all(run->comm, ENDED, code < 0 ? &later : err);
    if (code == 0)
        code = met < 0 ? met : look_at_others(run, err);
    if (code < 0)
        lose(run->comm->by_boxes, run->native->device, run->stream);
    return code;
}

static int
launch_and_wait(run_t *run, wm_laid_t *laid, wm_error_t *err)
{
    wm_by_boxes_t *boxes = run->comm->by_boxes;
    wm_signal_renew(&boxes->ended);
    const wm_by_kernels_words_t words = {
        .own = boxes->ended.word,
        .begun = boxes->ended.value - BEFORE,
        .done = boxes->ended.value,
    };
    int code = wm_by_kernels_enqueue(&boxes->exchange, laid, &words, err);
    if (code < 0)
        tell_failure(run->native, err);
    else
        code = wm_coll_await(run->comm, look, run, LOOKS, err);
    return meet_at_end(run, code, err);
}

int
wm_by_boxes_call(wm_comm_t *comm, const wm_coll_t *call, wm_native_t *native,
                 wm_error_t *err)
{
    wm_laid_t laid = {.call = call, .comm = comm, .device = native->device};
    run_t run = {.comm = comm, .native = native};
    if (!wm_by_boxes_are(native, WM_BOXES_OPEN))
        return 1;
    int code = wm_laid_out(&laid, err);
    if (code == 0 && !wm_by_kernels_is_short(&comm->by_boxes->exchange, &laid))
        return 1;
    bool pooled = !native->into.opened;
    if (code == 0 && pooled)
        code = wm_stream_acquire(native->device, &laid.stream, err);
    else if (code == 0)
        laid.stream = native->into.stream;
    run.stream = laid.stream;
    if (code < 0) { // as the others wait for us
        tell_failure(native, err);
        return meet_at_end(&run, code, err);
    }
    wm_device_stay();
    code = launch_and_wait(&run, &laid, err);
    wm_device_go();
    if (pooled)
        wm_stream_release(native->device, laid.stream);
    else {
        native->written = true;
        native->into.idle = true; // or as good as that
    }
    if (code == 0)
        wm_stat_add(WM_STAT_ipc_collectives, 1);
    return code;
}
