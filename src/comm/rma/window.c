// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/coll_gather.h"
#include "comm/engine/engine.h"
#include "comm/node/segment_words.h"
#include "comm/rma/window_attach.h"
#include "comm/rma/window_run.h"
#include "comm/rma/window_sync.h"

// The data that each rank tells all others, and behind it the index of its
// epoch words for each rank.
typedef struct {
    wm_rkey_t place;
    CUuuid device; // of its GPU
    uint64_t nbytes;
    int64_t unit;
    int32_t words;
    uint8_t on_device, exported, has_epochs;
} published_t;

// Returns the bytes that each rank tells. No rank has epoch words for ranks of
// other hosts, and there may be thousands.
static size_t
window_published_bytes(const wm_comm_t *comm)
{
    bool together = true;
    for (int rank = 0; rank < comm->size && together; ++rank)
        together = comm->peers[rank]->same_host;
    return sizeof(published_t)
           + (together ? (size_t)comm->size * sizeof(int32_t) : 0);
}

static published_t *
published_of(char *all, size_t each, int rank)
{
    return (published_t *)(void *)(all + (size_t)rank * each);
}

// Takes words, and exports the memory if that is possible.
static int
window_describe(wm_window_t *window, const wm_window_given_t *given,
                published_t *mine, wm_error_t *err)
{
    int32_t *indices = (int32_t *)(void *)(mine + 1);
    const wm_device_t *facts;
    if (window->device >= 0
        && wm_device_describe(window->device, &facts, NULL) == 0)
        mine->device = facts->uuid;
    if (given->on_device && given->nbytes > 0
        && given->memory.kind == WM_MEMORY_DEVICE && given->memory.exportable)
        mine->exported = wm_rkey_export(given->data, &given->memory,
                                        &mine->place, NULL)
                         == 0;
    int words = wm_window_lock_acquire_words(err);
    if (words < 0)
        return words;
    window->words = mine->words = words;
    for (int i = 0; i < window->size; ++i)
        if (!wm_node_shares(window->comm->peers[i]))
            return 0;
    if (wm_epochs_new(window->comm->peers, window->size, &window->epochs, NULL)
        == 0) {
        mine->has_epochs = 1;
        for (int i = 0; i < window->size; ++i)
            indices[i] = window->epochs->neighbors[i].index;
    }
    return 0;
}

// Connects the part of a rank, as it has told.
static int
window_connect(wm_window_t *window, int rank, const published_t *its,
               wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[rank];
    wm_peer_t *peer = window->comm->peers[rank];
    part->nbytes = its->nbytes;
    part->unit = its->unit;
    part->on_device = its->on_device;
    part->place = its->place;
    if (!wm_node_shares(peer))
        return 0; // on another host
    part->words = wm_window_lock_words(peer, its->words);
    part->index = its->words;
    if (part->words == NULL
        || (rank != window->comm->rank && its->exported
            && !wm_rkey_holds(&part->place, part->nbytes)))
        return wm_comm_damaged(window->comm, rank, err);
    part->left = atomic_load(&part->words->left);
    if (rank == window->comm->rank)
        window->waiter.shown = &part->words->graphs;
    return 0;
}

// Maps the part of a rank, if that is possible.
static void
window_map(wm_window_t *window, int rank, const published_t *its)
{
    wm_window_part_t *part = &window->parts[rank];
    part->updates = rank == window->comm->rank
                    || (window->device >= 0
                        && wm_device_is_linked(window->device, &its->device,
                                               &part->updates, NULL)
                               == 0
                        && part->updates);
    if (its->exported && part->words != NULL && rank != window->comm->rank
        && window->device >= 0)
        (void)!wm_mapping_reach(window->comm->peers[rank], &part->place,
                                window->device, &part->mapping, &part->memory,
                                NULL);
}

// Connects the words for Post and Start, which all ranks have.
static int
window_connect_epochs(wm_window_t *window, char *all, size_t each,
                      wm_error_t *err)
{
    bool known = true;
    for (int rank = 0; rank < window->size; ++rank)
        known &= published_of(all, each, rank)->has_epochs == 1;
    if (!known) {
        wm_epochs_free(window->epochs);
        window->epochs = NULL;
    }
    for (int rank = 0; rank < window->size && known; ++rank) {
        const published_t *its = published_of(all, each, rank);
        const int32_t *indices = (const int32_t *)(const void *)(its + 1);
        if (wm_epochs_connect(window->epochs, rank,
                              indices[window->comm->rank], -1, err)
            < 0)
            return wm_comm_damaged(window->comm, rank, err);
    }
    if (known)
        window->epochs->revoked = &window->comm->revoked;
    return 0;
}

bool
wm_window_reaches(const wm_window_t *window, int rank, bool updates)
{
    const wm_window_part_t *part = &window->parts[rank];
    if (part->nbytes == 0 && !window->dynamic)
        return true;
    return (part->memory != NULL || window->dynamic)
           && (part->updates || !updates);
}

// Returns true if this rank accesses all parts by itself, and has words for
// epochs.
static bool
window_reaches_all(const wm_window_t *window)
{
    bool all = !window->dynamic && window->epochs != NULL;
    for (int rank = 0; rank < window->size && all; ++rank)
        all = window->parts[rank].words != NULL
              && wm_window_reaches(window, rank, true);
    return all;
}

static int
window_learn(wm_window_t *window, const wm_window_given_t *given, char *all,
             size_t each, wm_error_t *err)
{
    int size = window->size, code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < size && code == 0; ++rank)
        code = window_connect(window, rank, published_of(all, each, rank),
                              err);
    for (int rank = 0; rank < size && code == 0; ++rank)
        window_map(window, rank, published_of(all, each, rank));
    if (code == 0)
        code = window_connect_epochs(window, all, each, err);
    wm_engine_unlock();
    if (given->on_device && given->memory.kind == WM_MEMORY_DEVICE)
        window->parts[window->comm->rank].memory = given->data;
    return code;
}

// --- the target -----------------------------------------------------------

// Makes the target if some rank does not reach all parts by itself.
static int
window_expose(wm_window_t *window, const wm_window_given_t *given,
              uint8_t *reached, int code, wm_error_t *err)
{
    wm_window_part_t *own = &window->parts[window->comm->rank];
    const wm_target_memory_t memory = {
        .data = given->data,
        .nbytes = given->nbytes,
        .memory = given->memory,
    };
    uint8_t mine = code == 0 && window_reaches_all(window);
    code = wm_coll_exchange(window->comm, WM_TARGET_CALL, code, &mine,
                            sizeof mine, reached, err);
    if (code < 0 || memchr(reached, 0, (size_t)window->size) == NULL)
        return code;
    return wm_target_expose(window->comm, given->nbytes > 0 ? &memory : NULL,
                            own->words, &window->target, err);
}

static int
window_exchange(wm_window_t *window, const wm_window_given_t *given,
                char *memory, wm_error_t *err)
{
    int size = window->size, code = given->code;
    size_t each = window_published_bytes(window->comm);
    published_t *mine = published_of(memory, each, size);
    mine->nbytes = given->nbytes;
    mine->unit = given->unit;
    mine->on_device = given->on_device;
    if (code < 0)
        (void)wm_error_set(err, code, 0, "%s", given->text);
    else {
        wm_engine_lock();
        code = window_describe(window, given, mine, err);
        wm_engine_unlock();
    }
    code = wm_coll_exchange(window->comm, WM_TARGET_CALL, code, mine, each,
                            memory, err);
    if (code < 0)
        return code;
    code = window_learn(window, given, memory, each, err);
    return window_expose(window, given, (uint8_t *)memory, code, err);
}

// --- the end --------------------------------------------------------------

void
wm_window_leave(wm_window_t *window)
{
    wm_window_part_t *own = &window->parts[window->comm->rank];
    if (window->left || atomic_load(&window->waiter.graphs) > 0)
        return;
    window->left = true;
    atomic_fetch_add(&own->words->left, 1);
}

void
wm_window_stay(wm_window_t *window)
{
    wm_window_part_t *own = &window->parts[window->comm->rank];
    if (window->left)
        atomic_fetch_sub(&own->words->left, 1);
    window->left = false;
}

// Returns true for a rank that has no graphs with calls: it is of another
// host, or has died, or is in MPI_Finalize.
static bool
window_is_elsewhere(const wm_window_t *window, int rank)
{
    const wm_peer_t *peer = window->comm->peers[rank];
    return window->parts[rank].words == NULL || peer->dead
           || (rank != window->comm->rank && wm_node_is_leaving(peer));
}

// Returns true if no rank of this host has graphs with calls.
static bool
window_have_all_left(const wm_window_t *window)
{
    bool left = true;
    for (int rank = 0; rank < window->size && left; ++rank) {
        const wm_window_part_t *part = &window->parts[rank];
        left = window_is_elsewhere(window, rank)
               || atomic_load(&part->words->left) != part->left;
    }
    return left;
}

bool
wm_window_has_graphs(const wm_window_t *window)
{
    bool has = false;
    for (int rank = 0; rank < window->size && !has; ++rank)
        has = !window_is_elsewhere(window, rank)
              && atomic_load(&window->parts[rank].words->graphs) > 0;
    return has;
}

// Gives up what calls in graphs use, too, but the memory.
static void
window_unmap(wm_waiter_t *waiter)
{
    wm_window_t *window = (wm_window_t *)waiter;
    wm_engine_lock();
    for (int rank = 0; rank < window->size; ++rank)
        if (window->parts[rank].mapping != NULL)
            wm_mapping_release(window->parts[rank].mapping);
    wm_window_detach_all(window);
    wm_epochs_free(window->epochs);
    wm_segment_words_give(WM_WORDS_OF_WINDOWS, window->words);
    wm_engine_unlock();
}

static void
window_release(wm_waiter_t *waiter)
{
    wm_window_t *window = (wm_window_t *)waiter;
    if (window->owner != NULL)
        window->release(window->owner);
    free(window->attached);
    pthread_mutex_destroy(&window->lock);
    free(window);
}

static void
window_free(wm_window_t *window)
{
    window_unmap(&window->waiter);
    window_release(&window->waiter);
}

static int
window_end_work(wm_window_t *window, wm_error_t *err)
{
    int code = window->target != NULL ? wm_target_withdraw(window->target, err)
                                      : 0;
    wm_window_release_ended(window);
    for (int rank = 0; rank < window->size; ++rank)
        for (int what = 0; what < WM_WINDOW_NOTICES; ++what)
            wm_window_drop_notice(&window->parts[rank],
                                  (wm_window_notice_t)what);
    if (window->opened)
        wm_stream_release(window->device, window->stream);
    if (window->signal.word != NULL)
        wm_signal_release(&window->signal);
    return code;
}

static bool
window_has_ended(wm_waiter_t *waiter)
{
    (void)waiter; // the epochs know of graphs that run
    return true;
}

static bool
window_is_left(wm_waiter_t *waiter, bool may_wait)
{
    wm_window_t *window = (wm_window_t *)waiter;
    (void)may_wait;
    wm_window_leave(window);
    return window_have_all_left(window);
}

static const wm_waiter_class_t class = {
    .name = "window",
    .has_ended = window_has_ended,
    .is_left = window_is_left,
    .free = window_unmap,
    .release = window_release,
};

int
wm_window_close(wm_window_t *window, void *owner, void (*release)(void *owner),
                wm_error_t *err)
{
    int code = window_end_work(window, err);
    window->owner = owner;
    window->release = release;
    if (window_have_all_left(window))
        window_free(window);
    else {
        wm_waiter_add(&window->waiter, &class, window->comm);
        wm_waiter_drop(&window->waiter);
    }
    return code;
}

int
wm_window_open(wm_comm_t *comm, const wm_window_given_t *given,
               wm_window_t **made, wm_error_t *err)
{
    size_t parts = (size_t)comm->size * sizeof(wm_window_part_t);
    wm_waiters_collect();
    wm_window_t *window = calloc(1, sizeof *window + parts);
    char *memory = calloc((size_t)comm->size + 1,
                          window_published_bytes(comm));
    if (window == NULL || memory == NULL) {
        free(window);
        free(memory);
        wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        return wm_coll_exchange(comm, WM_TARGET_CALL, WM_ERR_MEMORY, NULL,
                                window_published_bytes(comm), NULL, err);
    }
    window->comm = comm;
    window->size = comm->size;
    window->words = -1;
    window->dynamic = given->dynamic;
    window->interrupted = given->interrupted;
    pthread_mutex_init(&window->lock, NULL);
    window->device = given->on_device && given->nbytes > 0
                         ? given->memory.device
                         : wm_device_current();
    if (window->device < 0)
        window->device = wm_device_default();
    int code = window_exchange(window, given, memory, err);
    free(memory);
    if (code == 0)
        *made = window;
    else {
        (void)!window_end_work(window, NULL);
        window_free(window);
    }
    return code;
}
