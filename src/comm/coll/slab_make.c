// SPDX-License-Identifier: BSD-3-Clause
// How slabs are made, made anew after a failure, and given back.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "array/pull.h"
#include "array/reduce.h"
#include "comm/coll/agreement.h"
#include "comm/coll/await.h"
#include "comm/coll/deaths.h"
#include "comm/coll/fuse.h"
#include "comm/coll/native.h"
#include "comm/coll/slab_state.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "cuda/event.h"
#include "cuda/lock.h"

#define NAP_NS 100000
#define LINGER_NS 1000000 // as kernels do
#define NAPS 50000        // in vain

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(wm_slabs_t *) list; // list_lock, but to see whether any is

// What a rank says of itself.
typedef struct {
    uint32_t streams; // what they have counted to
    wm_thresholds_t thresholds;
} said_t;

// What is this rank's alone.
static int
prepare(wm_slabs_t *slabs, said_t *said, wm_error_t *err)
{
    int code = slabs->captured
                   ? wm_event_create(slabs->device, &slabs->ended, err)
                   : 0;
    // Later, streams that wait for others could keep it from being loaded.
    if (code == 0)
        code = wm_reduce_prepare(slabs->device, err);
    if (code == 0)
        code = wm_by_kernels_prepare(slabs->device, err);
    if (code == 0) // of messages
        code = wm_pull_prepare(slabs->device, err);
    wm_fuse_prepare(slabs->device);
    if (code < 0)
        return code;
    if (slabs->captured)
        wm_barrier_begin_rounds(slabs->barrier);
    else {
        said->streams = wm_barrier_streams_now(slabs->barrier);
        wm_signatures_open(&slabs->signatures, slabs->barrier);
    }
    return 0;
}

static int
find_all(wm_slabs_t *slabs, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    const said_t *first = wm_agree_said(comm->barrier, 0);
    slabs->thresholds = first->thresholds;
    wm_engine_lock();
    for (int rank = 0; rank < slabs->size && code == 0; ++rank) {
        const said_t *said = wm_agree_said(comm->barrier, rank);
        if (!slabs->captured)
            wm_barrier_set_streams(slabs->barrier, rank, said->streams);
        code = wm_node_register(comm->peers[rank], false, slabs->device, err);
    }
    wm_engine_unlock();
    return code;
}

static int
open_kernels(wm_slabs_t *slabs, wm_error_t *err)
{
    wm_ll_rank_t ranks[WM_LL_RANKS];
    for (int rank = 0; rank < slabs->size; ++rank) {
        wm_word_op_t word = slabs->captured
                                ? wm_barrier_gone_word(slabs->barrier)
                                : wm_barrier_stream_word(slabs->barrier, rank,
                                                         0);
        ranks[rank] = (wm_ll_rank_t){
            .word = (const uint32_t *)word.word,
            .base = word.value,
        };
    }
    slabs->by_kernels = slabs->shared->blocks > 0;
    slabs->exchange.counted = slabs->captured;
    return wm_by_kernels_open(&slabs->exchange, slabs->shared,
                              &slabs->thresholds, ranks, slabs->rank, err);
}

static void
discard(wm_slabs_t *slabs)
{
    wm_by_kernels_close(&slabs->exchange);
    wm_signatures_close(&slabs->signatures);
    wm_shared_free(slabs->shared);
    for (size_t i = 0; i < slabs->copied; ++i)
        wm_block_free(slabs->copies[i], 0, NULL, NULL);
    free(slabs->copies);
    if (slabs->ended != NULL)
        wm_event_destroy(slabs->device, slabs->ended);
    pthread_mutex_destroy(&slabs->lock);
    free(slabs);
}

static wm_slabs_t *
new_slabs(wm_comm_t *comm, int device, bool captured)
{
    wm_slabs_t *slabs = calloc(1, sizeof *slabs);
    if (slabs == NULL)
        return NULL;
    pthread_mutex_init(&slabs->lock, NULL);
    slabs->captured = captured;
    slabs->device = device;
    slabs->rank = comm->rank;
    slabs->size = comm->size;
    slabs->comm = comm;
    slabs->barrier = comm->barrier;
    return slabs;
}

static void
enlist(wm_slabs_t *slabs)
{
    wm_lock(&list_lock);
    slabs->next = list;
    list = slabs;
    pthread_mutex_unlock(&list_lock);
}

static void
delist(const wm_slabs_t *slabs)
{
    wm_lock(&list_lock);
    wm_slabs_t *before = list;
    if (before == slabs)
        list = slabs->next;
    while (before != NULL && before->next != slabs)
        before = before->next;
    if (before != NULL)
        before->next = slabs->next;
    pthread_mutex_unlock(&list_lock);
}

static int
make(wm_comm_t *comm, wm_slabs_t *slabs, bool on_host, bool *unreached,
     wm_error_t *err)
{
    said_t said = {.streams = 0};
    size_t nbytes = on_host ? WM_BY_KERNELS_BYTES_ON_HOST
                            : WM_BY_KERNELS_BYTES;
    wm_agree_t agree = {{0}};
    int code = slabs == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : prepare(slabs, &said, err);
    code = wm_shared_tell(comm, code, unreached, NULL, err);
    if (code == 0)
        code = wm_shared_make(comm, slabs->device, on_host, nbytes,
                              wm_by_kernels_clear, &slabs->shared, unreached,
                              err);
    if (code < 0 || *unreached)
        return code;
    wm_thresholds_find(slabs->device, slabs->shared->linked, slabs->size,
                       &said.thresholds);
    code = wm_agree_saying(comm, &agree, &said, sizeof said, err);
    if (code < 0)
        return code;
    code = find_all(slabs, comm, err);
    if (code == 0)
        code = open_kernels(slabs, err);
    if (code < 0 && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return wm_shared_tell(comm, code, unreached, NULL, err);
}

int
wm_slabs_make(wm_comm_t *comm, int device, bool captured, int code,
              wm_error_t *err)
{
    bool unreached = !wm_native_is_reached(comm), on_host;
    wm_slabs_t *slabs;
    wm_agreement_t agreed = {
        .call = captured ? WM_CALL_CAPTURED : WM_CALL_ON_STREAM,
        .code = code,
        .stages = unreached,
    };
    code = wm_agreement_make(comm, &agreed, err);
    unreached = agreed.stages;
    if (code < 0)
        return code;
    do { // where others turn out to be out of reach, once more
        on_host = unreached;
        unreached = false;
        slabs = new_slabs(comm, device, captured);
        code = make(comm, slabs, on_host, &unreached, err);
        if ((code < 0 || unreached) && slabs != NULL)
            discard(slabs);
    } while (code == 0 && unreached && !on_host);
    if (code == 0 && unreached)
        code = wm_error_set(err, WM_ERR_CUDA, 0,
                            "page-locked memory cannot be mapped");
    if (code < 0)
        return code;
    wm_engine_lock();
    *(captured ? &comm->graph_slabs : &comm->slabs) = slabs;
    wm_deaths_watch();
    wm_engine_unlock();
    if (!captured)
        enlist(slabs);
    wm_engine_notify(); // it looks for dead ranks from now on
    return 0;
}

int
wm_slabs_hear_all(wm_error_t *err)
{
    int code = 0;
    if (list == NULL)
        return 0;
    wm_lock(&list_lock);
    for (wm_slabs_t *slabs = list; slabs != NULL && code == 0;
         slabs = slabs->next)
        code = wm_slabs_hear(slabs, err);
    pthread_mutex_unlock(&list_lock);
    return code;
}

static int
look_for_recovery(void *context, wm_error_t *err)
{
    const wm_slabs_t *slabs = context;
    return wm_signatures_all_recover(&slabs->signatures, slabs->barrier, err);
}

// Our streams have come to the end of what they were given, and nobody is
// waited for any more.
static int
look_for_end(void *context, wm_error_t *err)
{
    wm_slabs_t *slabs = context;
    (void)err;
    if (wm_barrier_have_kept(slabs->barrier))
        return 1;
    wm_slabs_give_up(slabs);
    return 0;
}

// Clears the state that belongs to this rank alone.
static int
clear(wm_slabs_t *slabs, said_t *said, wm_error_t *err)
{
    int code = wm_by_kernels_clear(
        slabs->shared, slabs->shared->ranks[slabs->rank].memory, err);
    wm_by_kernels_close(&slabs->exchange);
    slabs->exchange = (wm_by_kernels_t){.number = 0};
    slabs->turn = slabs->turns = 0;
    slabs->pieces = 0;
    slabs->last = 0;
    wm_signatures_open(&slabs->signatures, slabs->barrier);
    said->thresholds = slabs->thresholds;
    said->streams = wm_barrier_streams_now(slabs->barrier);
    return code;
}

// All ranks' streams have come to their ends. Engine lock not held.
static int
begin_anew(wm_slabs_t *slabs, wm_error_t *err)
{
    said_t said;
    bool none = false;
    wm_agree_t agree = {{0}};
    const struct timespec linger = {.tv_nsec = LINGER_NS};
    nanosleep(&linger, NULL); // what they wrote may come behind their words
    wm_lock(&slabs->lock);
    int code = clear(slabs, &said, err);
    pthread_mutex_unlock(&slabs->lock);
    code = wm_shared_tell(slabs->comm, code, &none, NULL, err);
    if (code == 0)
        code = wm_agree_saying(slabs->comm, &agree, &said, sizeof said, err);
    if (code < 0)
        return code;
    wm_lock(&slabs->lock);
    code = find_all(slabs, slabs->comm, err);
    wm_barrier_promise(slabs->barrier, 0);
    if (code == 0)
        code = open_kernels(slabs, err);
    pthread_mutex_unlock(&slabs->lock);
    return wm_shared_tell(slabs->comm, code, &none, NULL, err);
}

int
wm_slabs_recover(wm_slabs_t *slabs, wm_error_t *err)
{
    bool none = false;
    wm_lock(&slabs->lock);
    int code = wm_slabs_find_dead(slabs, err);
    bool lost = slabs->lost.code < 0;
    if (lost)
        wm_signatures_recover(&slabs->signatures, slabs->barrier);
    pthread_mutex_unlock(&slabs->lock);
    if (code < 0 || !lost)
        return code;
    code = wm_coll_await(slabs->comm, look_for_recovery, slabs,
                         WM_LOOKS_AT_WORDS, err);
    if (code < 0)
        return code;
    uint32_t first; // all have told of their failures, and tell no more
    wm_error_t unused;
    wm_lock(&slabs->lock);
    if (wm_signatures_find_failure(&slabs->signatures, slabs->barrier, &first,
                                   &unused)
            < 0
        && first < slabs->lost_at)
        slabs->lost_at = first;
    pthread_mutex_unlock(&slabs->lock);
    code = wm_coll_await(slabs->comm, look_for_end, slabs, 0, err);
    code = wm_shared_tell(slabs->comm, code, &none, NULL, err);
    if (code == 0)
        code = begin_anew(slabs, err);
    if (code < 0)
        return code;
    wm_lock(&slabs->lock);
    slabs->former = slabs->lost;
    slabs->former_at = slabs->lost_at;
    slabs->lost = (wm_error_t){.code = 0};
    ++slabs->epoch;
    pthread_mutex_unlock(&slabs->lock);
    return 0;
}

static bool
have_all_ended(const wm_slabs_t *slabs)
{
    for (int rank = 0; rank < slabs->size; ++rank)
        if (!wm_barrier_stream_arrived(slabs->barrier, rank,
                                       (slabs->signatures.calls << 16)
                                           + WM_SLAB_ENDED))
            return false;
    return wm_barrier_have_kept(slabs->barrier);
}

bool
wm_slabs_free(wm_slabs_t *slabs)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    delist(slabs);
    // Of graphs nobody here knows whether they are running.
    for (int naps = 0; slabs->signatures.calls > 0 && !have_all_ended(slabs);
         ++naps) {
        if (naps == NAPS)
            return false;
        wm_engine_lock();
        (void)wm_deaths_look(slabs->comm);
        wm_engine_unlock();
        nanosleep(&nap, NULL);
    }
    if (slabs->by_kernels) // what they wrote may come behind their words
        nanosleep(&(struct timespec){.tv_nsec = LINGER_NS}, NULL);
    discard(slabs);
    return true;
}
