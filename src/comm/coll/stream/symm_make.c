// SPDX-License-Identifier: BSD-3-Clause
// This file makes wm_symm_t, recovers it after a failure, and frees it.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "array/kernels.h"
#include "array/pull.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/direct/symm_group.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/stream_failure.h"
#include "comm/coll/direct/direct.h"
#include "comm/coll/stream/symm_state.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "comm/node/stream_words.h"
#include "comm/transfer/fuse.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/settings.h"

#define NAP_NS 100000
#define LINGER_NS 1000000 // as in kernels
#define NAPS 50000        // naps before we stop waiting

_Static_assert((int)WM_LL_RANKS == WM_BARRIER_RANKS,
               "a barrier has as many ranks as the kernels have room for");

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(wm_symm_t *) list; // list_lock; not needed to test for NULL

// Data that a rank publishes.
typedef struct {
    uint32_t streams; // its stream word
    wm_thresholds_t thresholds;
} published_t;

// Raises on all ranks if one has failed. *unreached becomes true if it is on
// any rank.
static int
exchange_unreached(wm_comm_t *comm, int code, bool *unreached, wm_error_t *err)
{
    wm_preflight_t preflight = {
        .call = WM_COLL_ON_STREAM,
        .code = code,
        .all = !*unreached,
    };
    code = wm_preflight_run(comm, &preflight, err);
    *unreached = preflight.all == 0;
    return code;
}

// Makes the memory for the ranks of a communicator.
static int
symm_make_memory(wm_comm_t *comm, wm_symm_t *symm, bool on_host,
                 bool *unreached, wm_error_t *err)
{
    size_t nbytes = on_host ? WM_KERNEL_COLL_BYTES_ON_HOST
                            : WM_KERNEL_COLL_BYTES;
    const wm_symm_group_t group = wm_symm_group_of(
        comm, "symmetric memory of a collective", nbytes);
    return wm_symm_memory_make(&group, symm->device, on_host, nbytes,
                               wm_kernel_coll_clear, &symm->memory, unreached,
                               err);
}

// Prepares the state that belongs to this rank alone.
static int
symm_prepare(wm_symm_t *symm, published_t *published, wm_error_t *err)
{
    int code = symm->captured
                   ? wm_event_create(symm->device, &symm->ended, err)
                   : 0;
    // Kernels are loaded here: later, streams that wait for others could block
    // that.
    if (code == 0)
        code = wm_kernels_prepare(symm->device, WM_KERNELS_REDUCE, err);
    if (code == 0)
        code = wm_kernel_coll_prepare(symm->device, err);
    if (code == 0) // for messages
        code = wm_pull_prepare(symm->device, err);
    wm_fuse_prepare(symm->device);
    if (code < 0)
        return code;
    if (symm->captured)
        wm_graph_words_begin(symm->barrier);
    else {
        published->streams = wm_stream_word_now(symm->barrier);
        wm_signatures_open(&symm->signatures, symm->barrier);
    }
    return 0;
}

static int
symm_find_all(wm_symm_t *symm, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    const published_t *first = wm_preflight_data(comm->barrier, 0);
    symm->thresholds = first->thresholds;
    wm_engine_lock();
    for (int rank = 0; rank < symm->size && code == 0; ++rank) {
        const published_t *published = wm_preflight_data(comm->barrier, rank);
        if (!symm->captured)
            wm_stream_word_set_base(symm->barrier, rank, published->streams);
        code = wm_node_register(comm->peers[rank], false, symm->device, err);
    }
    wm_engine_unlock();
    return code;
}

static int
open_kernels(wm_symm_t *symm, wm_error_t *err)
{
    wm_ll_rank_t ranks[WM_LL_RANKS];
    for (int rank = 0; rank < symm->size; ++rank) {
        wm_word_op_t word = symm->captured
                                ? wm_stream_words_abort_op(symm->barrier)
                                : wm_stream_word_op(symm->barrier, rank, 0);
        ranks[rank] = (wm_ll_rank_t){
            .word = (const uint32_t *)word.word,
            .base = symm->captured ? (uint32_t)rank : word.value,
        };
    }
    symm->kernel_coll = symm->memory->multiprocessors > 0;
    symm->kernels.counted = symm->captured;
    return wm_kernel_coll_open(&symm->kernels, symm->memory, &symm->thresholds,
                               ranks, symm->rank, err);
}

static void
symm_discard(wm_symm_t *symm)
{
    wm_kernel_coll_close(&symm->kernels);
    wm_signatures_close(&symm->signatures);
    wm_symm_memory_free(symm->memory);
    wm_graph_marks_leave(symm);
    if (symm->ended != NULL)
        wm_event_destroy(symm->device, symm->ended);
    pthread_mutex_destroy(&symm->lock);
    free(symm);
}

static wm_symm_t *
symm_new(wm_comm_t *comm, int device, bool captured)
{
    wm_symm_t *symm = calloc(1, sizeof *symm);
    if (symm == NULL)
        return NULL;
    pthread_mutex_init(&symm->lock, NULL);
    symm->captured = captured;
    symm->device = device;
    symm->rank = comm->rank;
    symm->size = comm->size;
    symm->comm = comm;
    symm->barrier = comm->barrier;
    return symm;
}

static void
symm_enlist(wm_symm_t *symm)
{
    wm_lock(&list_lock);
    symm->next = list;
    list = symm;
    pthread_mutex_unlock(&list_lock);
}

static void
symm_delist(const wm_symm_t *symm)
{
    wm_lock(&list_lock);
    wm_symm_t *before = list;
    if (before == symm)
        list = symm->next;
    while (before != NULL && before->next != symm)
        before = before->next;
    if (before != NULL)
        before->next = symm->next;
    pthread_mutex_unlock(&list_lock);
}

static int
symm_make(wm_comm_t *comm, wm_symm_t *symm, bool on_host, bool *unreached,
          wm_error_t *err)
{
    published_t published = {.streams = 0};
    int code = symm == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : symm_prepare(symm, &published, err);
    code = exchange_unreached(comm, code, unreached, err);
    if (code == 0)
        code = symm_make_memory(comm, symm, on_host, unreached, err);
    if (code < 0 || *unreached)
        return code;
    wm_thresholds_find(symm->device, symm->memory->linked, symm->size,
                       &published.thresholds);
    code = wm_preflight_share(comm, &published, sizeof published, err);
    if (code < 0)
        return code;
    code = symm_find_all(symm, comm, err);
    if (code == 0)
        code = open_kernels(symm, err);
    if (code < 0 && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return exchange_unreached(comm, code, unreached, err);
}

int
wm_symm_make(wm_comm_t *comm, int device, bool captured, int code,
             wm_error_t *err)
{
    bool unreached, on_host;
    wm_symm_t *symm;
    wm_preflight_t preflight = {
        .call = captured ? WM_COLL_CAPTURED : WM_COLL_ON_STREAM,
        .code = code,
        .all = wm_direct_is_reached(comm),
    };
    code = wm_preflight_run(comm, &preflight, err);
    unreached = preflight.all == 0;
    if (code < 0)
        return code;
    do { // if peers are out of reach, retry with host memory
        on_host = unreached;
        unreached = false;
        symm = symm_new(comm, device, captured);
        code = symm_make(comm, symm, on_host, &unreached, err);
        if ((code < 0 || unreached) && symm != NULL)
            symm_discard(symm);
    } while (code == 0 && unreached && !on_host);
    if (code == 0 && unreached)
        code = wm_error_set(err, WM_ERR_CUDA, 0,
                            "page-locked memory cannot be mapped");
    if (code < 0)
        return code;
    wm_engine_lock();
    *(captured ? &comm->graph_symm : &comm->symm) = symm;
    wm_stream_failure_watch();
    wm_engine_unlock();
    symm_enlist(symm);
    wm_engine_notify(); // it looks for dead ranks
    return 0;
}

bool
wm_symm_any(void)
{
    return list != NULL;
}

int
wm_symm_find_failures(wm_error_t *err)
{
    int code = 0;
    wm_lock(&list_lock);
    for (wm_symm_t *symm = list; symm != NULL && code == 0; symm = symm->next)
        code = wm_symm_find_failure(symm, err);
    pthread_mutex_unlock(&list_lock);
    return code;
}

static int
look_for_recovery(void *context, wm_error_t *err)
{
    const wm_symm_t *symm = context;
    return wm_signatures_all_recover(&symm->signatures, err);
}

// Returns 1 when our streams have ended their work. Releases peers until then.
static int
look_for_end(void *context, wm_error_t *err)
{
    wm_symm_t *symm = context;
    (void)err;
    if (wm_stream_word_is_kept(symm->barrier))
        return 1;
    wm_symm_release_peers(symm);
    return 0;
}

// Clears the state that belongs to this rank alone.
static int
symm_clear(wm_symm_t *symm, published_t *published, wm_error_t *err)
{
    int code = wm_kernel_coll_clear(
        symm->memory, symm->memory->ranks[symm->rank].memory, err);
    wm_kernel_coll_close(&symm->kernels);
    symm->kernels = (wm_kernel_coll_t){.number = 0};
    symm->turn = symm->turns = 0;
    symm->fragments = 0;
    symm->last = 0;
    wm_signatures_open(&symm->signatures, symm->barrier);
    published->thresholds = symm->thresholds;
    published->streams = wm_stream_word_now(symm->barrier);
    return code;
}

// Resets the state after the streams of all ranks have ended. Engine lock not
// held.
static int
symm_begin_anew(wm_symm_t *symm, wm_error_t *err)
{
    published_t published;
    const struct timespec linger = {.tv_nsec = LINGER_NS};
    nanosleep(&linger, NULL); // data may arrive after the words
    wm_lock(&symm->lock);
    int code = symm_clear(symm, &published, err);
    pthread_mutex_unlock(&symm->lock);
    code = wm_preflight_tell(symm->comm, WM_COLL_ON_STREAM, code, err);
    if (code == 0)
        code = wm_preflight_share(symm->comm, &published, sizeof published,
                                  err);
    if (code < 0)
        return code;
    wm_lock(&symm->lock);
    code = symm_find_all(symm, symm->comm, err);
    wm_stream_word_promise(symm->barrier, 0);
    if (code == 0)
        code = open_kernels(symm, err);
    pthread_mutex_unlock(&symm->lock);
    return wm_preflight_tell(symm->comm, WM_COLL_ON_STREAM, code, err);
}

int
wm_symm_recover(wm_symm_t *symm, wm_error_t *err)
{
    wm_lock(&symm->lock);
    int code = wm_symm_find_dead(symm, err);
    bool lost = symm->lost.code < 0;
    if (lost)
        wm_signatures_recover(&symm->signatures);
    pthread_mutex_unlock(&symm->lock);
    if (code < 0 || !lost)
        return code;
    code = wm_coll_wait(symm->comm, look_for_recovery, symm, WM_LOOKS_AT_WORDS,
                        err);
    if (code < 0)
        return code;
    uint32_t first; // all ranks have published their failures
    wm_error_t unused;
    wm_lock(&symm->lock);
    if (wm_signatures_find_failure(&symm->signatures, &first, &unused) < 0
        && first < symm->lost_at)
        symm->lost_at = first;
    pthread_mutex_unlock(&symm->lock);
    code = wm_coll_wait(symm->comm, look_for_end, symm, 0, err);
    code = wm_preflight_tell(symm->comm, WM_COLL_ON_STREAM, code, err);
    if (code == 0)
        code = symm_begin_anew(symm, err);
    if (code < 0)
        return code;
    wm_lock(&symm->lock);
    symm->former = symm->lost;
    symm->former_at = symm->lost_at;
    symm->lost = (wm_error_t){.code = 0};
    ++symm->epoch;
    pthread_mutex_unlock(&symm->lock);
    return 0;
}

static bool
have_all_ended(const wm_symm_t *symm)
{
    for (int rank = 0; rank < symm->size; ++rank)
        if (!wm_stream_word_arrived(symm->barrier, rank,
                                    (symm->signatures.calls << 16)
                                        + WM_SYMM_ENDED))
            return false;
    return wm_stream_word_is_kept(symm->barrier);
}

// Frees `symm` when nobody uses the communicator any more. Returns false, and
// frees nothing, if streams may still use the memory, as they wait for a rank
// that has left: then the barrier must stay, too.
static bool
symm_free(wm_symm_t *symm)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    symm_delist(symm);
    // Waits for calls without captures. Nobody knows if graphs are running.
    for (int naps = 0; symm->signatures.calls > 0 && !have_all_ended(symm);
         ++naps) {
        if (naps == NAPS)
            return false;
        wm_engine_lock();
        (void)wm_stream_failure_look(symm->comm);
        wm_engine_unlock();
        nanosleep(&nap, NULL);
    }
    if (symm->kernel_coll) // data may arrive after the words
        nanosleep(&(struct timespec){.tv_nsec = LINGER_NS}, NULL);
    symm_discard(symm);
    return true;
}

void
wm_symm_drop(wm_comm_t *comm)
{
    bool symm = comm->symm != NULL || comm->graph_symm != NULL;
    bool lost = symm && wm_stream_words_dead(comm->barrier) >= 0;
    if (comm->graph_symm != NULL)
        (void)!symm_free(comm->graph_symm);
    if (comm->symm != NULL && !symm_free(comm->symm))
        lost = true;
    if (lost) // other ranks may still write to it
        comm->barrier = NULL;
}
