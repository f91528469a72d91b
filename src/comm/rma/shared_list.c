// SPDX-License-Identifier: BSD-3-Clause
// A rank that drops an array tells so by a word in its segment, once its own
// work on the array has ended and no graph has calls of the array. It frees
// its memory when all words tell. So no rank waits for another, and the memory
// of an array that anybody may still use is not given to others.
#include "comm/rma/shared_list.h"

#include <stdlib.h>

#include "array/peer_signal.h"
#include "comm/comm/failure.h"
#include "comm/diagnostics/hang.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/stats.h"
#include "comm/node/mapping.h"
#include "cuda/capture.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define LOOK_US 100000
// Set in all bytes of a dead rank's counters: no wait is for as much, also if
// it adds up the words of up to 127 ranks.
#define POISON 1

// Whoever changes the list has both the engine lock and list_lock, whoever
// reads it one of them. Nothing is called with list_lock held that may take a
// lock of this layer.
static wm_shared_array_t *list;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t collect_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(wm_shared_array_t *) dropped_here; // not yet looked at
static _Atomic int arrays, drops_left;
static bool taken[WM_SHARED_ARRAYS]; // engine lock

static _Atomic uint32_t *
drop_word(const wm_peer_t *peer, int index)
{
    return &peer->segment->shared_drops[index];
}

void
wm_shared_list_give_back(int index)
{
    taken[index] = false;
}

void
wm_shared_list_add(wm_shared_array_t *array)
{
    wm_comm_retain(array->comm);
    wm_engine_lock();
    wm_lock(&list_lock);
    array->next = list;
    list = array;
    atomic_fetch_add(&arrays, 1);
    wm_stat_add(WM_STAT_shared_arrays, 1);
    wm_stat_add(WM_STAT_shared_bytes, (int64_t)array->nbytes);
    pthread_mutex_unlock(&list_lock);
    wm_engine_unlock();
    wm_engine_notify(); // it now looks for dead ranks
}

static void
graph_ended(void *object)
{
    wm_shared_array_t *array = object;
    atomic_fetch_sub(&array->graphs, 1);
}

// Keeps the array for the graph that a call was captured into.
static int
note_graph(wm_shared_array_t *array, CUstream stream, uint64_t capture,
           wm_error_t *err)
{
    wm_lock(&list_lock);
    bool known = array->captured == capture;
    array->captured = capture;
    pthread_mutex_unlock(&list_lock);
    if (known)
        return 0;
    atomic_fetch_add(&array->graphs, 1);
    return wm_capture_keep(array->device, stream, array, graph_ended, err);
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
        return note_graph(array, stream, capture, err);
    wm_lock(&list_lock);
    code = wm_shared_work_note(&array->work, array->device, call, stream, err);
    pthread_mutex_unlock(&list_lock);
    return code;
}

static bool
has_ended(const wm_shared_array_t *array)
{
    return wm_shared_work_has_ended(&array->work, array->device);
}

void
wm_shared_array_drop(wm_shared_array_t *array)
{
    wm_shared_array_t *first = atomic_load(&dropped_here);
    do
        array->dropped = first;
    while (!atomic_compare_exchange_weak(&dropped_here, &first, array));
    atomic_fetch_add(&drops_left, 1);
}

static void
take_dropped(void)
{
    wm_shared_array_t *array = atomic_exchange(&dropped_here, NULL);
    for (; array != NULL; array = array->dropped)
        array->is_dropped = true;
}

// Tells that this rank has dropped the array, once its work has ended.
static void
publish(wm_shared_array_t *array)
{
    if (!array->is_dropped || array->published
        || atomic_load(&array->graphs) > 0 || !has_ended(array))
        return;
    atomic_fetch_add(drop_word(wm_node_self(), array->index), 1);
    wm_shared_list_give_back(array->index);
    array->published = true;
}

static int
find_free(void)
{
    int index = 0;
    while (index < WM_SHARED_ARRAYS && taken[index])
        ++index;
    return index;
}

int
wm_shared_list_take(uint32_t *drops)
{
    int index = find_free();
    if (index == WM_SHARED_ARRAYS) {
        // Dropped ones have their words until somebody looks at them.
        wm_lock(&list_lock);
        take_dropped();
        for (wm_shared_array_t *array = list; array != NULL;
             array = array->next)
            publish(array);
        pthread_mutex_unlock(&list_lock);
        index = find_free();
    }
    if (index == WM_SHARED_ARRAYS)
        return -1;
    taken[index] = true;
    *drops = atomic_load(drop_word(wm_node_self(), index));
    return index;
}

static bool
has_dropped(const wm_shared_array_t *array, int rank)
{
    const wm_peer_t *peer = array->ranks[rank].peer;
    uint32_t now = atomic_load(drop_word(peer, array->ranks[rank].index));
    return now != array->ranks[rank].drops || peer->dead
           || (rank != array->rank && wm_node_is_leaving(peer));
}

static bool
have_all_dropped(const wm_shared_array_t *array)
{
    bool all = array->published;
    for (int rank = 0; rank < array->size && all; ++rank)
        all = has_dropped(array, rank);
    return all;
}

static void
free_array(wm_shared_array_t *array)
{
    wm_shared_work_free(&array->work, array->device);
    wm_symm_memory_free(array->memory);
    wm_comm_release(array->comm);
    free(array);
}

// Removes, and returns, arrays that nobody uses any more. To end the
// page-locking of host memory may wait for the device, as to free memory does:
// that is left to a thread of the program, while no stream waits for others.
static wm_shared_array_t *
remove_unused(void)
{
    wm_shared_array_t *unused = NULL, *array;
    bool may_wait = !wm_engine_is_background() && !wm_mapping_would_wait();
    wm_lock(&list_lock);
    take_dropped();
    for (wm_shared_array_t **link = &list; (array = *link) != NULL;) {
        publish(array);
        bool stays = array->on_host && array->device >= 0 && !may_wait;
        if (!have_all_dropped(array) || stays) {
            link = &array->next;
            continue;
        }
        *link = array->next;
        array->next = unused;
        unused = array;
        atomic_fetch_sub(&drops_left, 1);
        atomic_fetch_sub(&arrays, 1);
        wm_stat_add(WM_STAT_shared_arrays, -1);
        wm_stat_add(WM_STAT_shared_bytes, -(int64_t)array->nbytes);
    }
    pthread_mutex_unlock(&list_lock);
    return unused;
}

// Both locks held, which are given back. What another thread has taken out of
// the list is free when collect_lock is held.
static void
collect_and_unlock(void)
{
    wm_shared_array_t *unused = remove_unused(), *next;
    wm_engine_unlock();
    for (; unused != NULL; unused = next) {
        next = unused->next;
        free_array(unused);
    }
    pthread_mutex_unlock(&collect_lock);
}

void
wm_shared_arrays_collect(void)
{
    wm_lock(&collect_lock);
    wm_engine_lock();
    collect_and_unlock();
}

// Returns true if a stream may be waiting for another rank in an array.
static bool
shared_list_waits(void)
{
    bool waits = false;
    if (atomic_load(&arrays) == 0)
        return false;
    wm_lock(&list_lock);
    for (wm_shared_array_t *array = list; array != NULL && !waits;
         array = array->next)
        waits = !has_ended(array);
    pthread_mutex_unlock(&list_lock);
    return waits;
}

// Ends waits for a dead rank: sets all our counters, whoever raises them.
static void
poison(wm_shared_array_t *array, int rank)
{
    char *words = array->memory->ranks[array->rank].memory + array->counters;
    size_t nbytes = array->words * sizeof(uint64_t);
    if (!array->on_host) {
        if (wm_peer_signal_poison(array->device, words, POISON, nbytes, NULL)
            < 0)
            return; // the next look tries again
    }
    else
        for (size_t i = 0; i < array->words; ++i)
            atomic_store(&((_Atomic uint64_t *)(void *)words)[i],
                         UINT64_MAX / UINT8_MAX * POISON);
    atomic_store(&array->dead, rank + 1);
}

static void
look_for_waits(wm_shared_array_t *array, int64_t now)
{
    wm_lock(&list_lock);
    wm_shared_work_look(&array->work, array->device, now, wm_hang_limit());
    pthread_mutex_unlock(&list_lock);
}

static void
look_for_dead(wm_shared_array_t *array)
{
    if (atomic_load(&array->dead) > 0)
        return;
    if (wm_failure_is_told())
        (void)!wm_failure_look_at_all(array->comm, NULL);
    if (array->comm->revoked)
        poison(array, array->size);
    for (int rank = 0; rank < array->size; ++rank)
        if (array->ranks[rank].peer->dead && atomic_load(&array->dead) == 0)
            poison(array, rank);
}

static void
shared_list_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    if (now - looked < LOOK_US
        || (atomic_load(&arrays) == 0 && atomic_load(&drops_left) == 0))
        return;
    if (pthread_mutex_trylock(&collect_lock) != 0)
        return;
    if (!wm_engine_try_lock()) {
        pthread_mutex_unlock(&collect_lock);
        return;
    }
    looked = now;
    for (wm_shared_array_t *array = list; array != NULL; array = array->next) {
        look_for_waits(array, now);
        look_for_dead(array);
    }
    collect_and_unlock();
}

static int64_t
shared_list_rest(void)
{
    return atomic_load(&arrays) > 0 || atomic_load(&drops_left) > 0 ? LOOK_US
                                                                    : 0;
}

// The user has freed a communicator: its arrays stay, without calls.
static void
shared_list_freed(wm_comm_t *comm)
{
    wm_engine_lock();
    for (wm_shared_array_t *array = list; array != NULL; array = array->next)
        if (array->comm == comm)
            atomic_store(&array->freed, true);
    wm_engine_unlock();
    wm_shared_arrays_collect();
}

static void
shared_list_begin(void)
{
    wm_mapping_add_waits(shared_list_waits);
}

const wm_module_t wm_shared_list_module = {
    .begin = shared_list_begin,
    .serve = shared_list_serve,
    .rest = shared_list_rest,
    .freed = shared_list_freed,
};
