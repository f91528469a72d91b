// SPDX-License-Identifier: BSD-3-Clause
// A rank that drops an array tells so by a word in its segment, once its own
// work on the array has ended and no graph has calls of the array. It frees
// its memory when all words tell. So no rank waits for another, and the memory
// of an array that anybody may still use is not given to others.
#include "comm/rma/shared_list.h"

#include <stdlib.h>

#include "array/peer_signal.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/node/segment_words.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

// Set in all bytes of counters, or, where a counter is a word for each writer,
// of what was taken from it: then no wait is for as much.
#define POISON 0x01
#define POISON_TAKEN 0x80

static wm_shared_array_t *
array_of(wm_waiter_t *waiter)
{
    return (wm_shared_array_t *)waiter;
}

static _Atomic uint32_t *
drop_word(const wm_peer_t *peer, int index)
{
    return &peer->segment->shared_drops[index];
}

int
wm_shared_list_take(uint32_t *drops, wm_error_t *err)
{
    int index = wm_segment_words_take(WM_WORDS_OF_SHARED, NULL);
    if (index < 0) { // dropped ones have words until somebody looks
        wm_waiters_leave();
        index = wm_segment_words_take(WM_WORDS_OF_SHARED, err);
    }
    if (index >= 0)
        *drops = atomic_load(drop_word(wm_node_self(), index));
    return index;
}

int
wm_shared_list_note(wm_shared_array_t *array, const wm_shared_call_t *call,
                    CUstream stream, wm_error_t *err)
{
    uint64_t capture = 0;
    int code = wm_stream_capture(array->device, stream, &capture, err);
    if (code < 0)
        return code;
    if (capture != 0)
        return wm_waiter_keep(&array->waiter, array->device, stream, capture,
                              err);
    wm_lock(&array->work_lock);
    code = wm_shared_work_note(&array->work, array->device, call, stream, err);
    pthread_mutex_unlock(&array->work_lock);
    return code;
}

void
wm_shared_array_drop(wm_shared_array_t *array)
{
    wm_waiter_drop(&array->waiter);
}

// --- the array as a waiter ------------------------------------------------

static bool
shared_list_has_ended(wm_waiter_t *waiter)
{
    wm_shared_array_t *array = array_of(waiter);
    wm_lock(&array->work_lock);
    bool ended = wm_shared_work_has_ended(&array->work, array->device);
    pthread_mutex_unlock(&array->work_lock);
    return ended;
}

static void
shared_list_report(wm_waiter_t *waiter, int64_t now, int64_t limit)
{
    wm_shared_array_t *array = array_of(waiter);
    wm_lock(&array->work_lock);
    wm_shared_work_look(&array->work, array->device, now, limit);
    pthread_mutex_unlock(&array->work_lock);
}

// Sets all our counters above any value, whoever raises them.
static bool
shared_list_end_waits(wm_waiter_t *waiter, int rank)
{
    wm_shared_array_t *array = array_of(waiter);
    const wm_shared_t *shared = &array->shared;
    bool alone = shared->writers == 1; // else in host memory
    wm_shared_word_t *words = alone ? shared->own : shared->taken;
    size_t count = (size_t)(shared->slots + shared->size);
    int byte = alone ? POISON : POISON_TAKEN;
    (void)rank;
    if (!array->on_host)
        return wm_peer_signal_poison(array->device, words, byte,
                                     count * sizeof *words, NULL)
               == 0;
    for (size_t i = 0; i < count; ++i)
        __atomic_store_n(&words[i], UINT64_MAX / UINT8_MAX * (unsigned)byte,
                         __ATOMIC_RELEASE);
    return true;
}

static bool
has_dropped(const wm_shared_array_t *array, int rank)
{
    const wm_peer_t *peer = array->ranks[rank].peer;
    uint32_t now = atomic_load(drop_word(peer, array->ranks[rank].index));
    return now != array->ranks[rank].drops || peer->dead
           || (rank != array->rank && wm_node_is_leaving(peer));
}

// To end the page-locking of host memory may wait for the device.
static bool
shared_list_is_left(wm_waiter_t *waiter, bool may_wait)
{
    wm_shared_array_t *array = array_of(waiter);
    if (!array->published) {
        atomic_fetch_add(drop_word(wm_node_self(), array->index), 1);
        wm_segment_words_give(WM_WORDS_OF_SHARED, array->index);
        array->published = true;
    }
    bool left = may_wait || !array->on_host || array->device < 0;
    for (int rank = 0; rank < array->size && left; ++rank)
        left = has_dropped(array, rank);
    return left;
}

static void
shared_list_free(wm_waiter_t *waiter)
{
    wm_shared_array_t *array = array_of(waiter);
    wm_stat_add(WM_STAT_shared_arrays, -1);
    wm_stat_add(WM_STAT_shared_bytes, -(int64_t)array->nbytes);
    wm_shared_work_free(&array->work, array->device);
    wm_symm_memory_free(array->memory);
    pthread_mutex_destroy(&array->work_lock);
    free(array);
}

static const wm_waiter_class_t class = {
    .name = "shared array",
    .has_ended = shared_list_has_ended,
    .report = shared_list_report,
    .end_waits = shared_list_end_waits,
    .is_left = shared_list_is_left,
    .free = shared_list_free,
};

void
wm_shared_list_add(wm_shared_array_t *array, wm_comm_t *comm)
{
    pthread_mutex_init(&array->work_lock, NULL);
    wm_stat_add(WM_STAT_shared_arrays, 1);
    wm_stat_add(WM_STAT_shared_bytes, (int64_t)array->nbytes);
    wm_waiter_add(&array->waiter, &class, comm);
}
