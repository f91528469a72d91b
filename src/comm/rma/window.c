// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/direct/preflight.h"
#include "comm/engine/engine.h"
#include "comm/rma/window_attach.h"
#include "comm/rma/window_run.h"

// The data that each rank tells all others, and behind it the index of its
// epoch words for each rank.
typedef struct {
    wm_rkey_t place;
    uint64_t nbytes;
    int64_t unit;
    int32_t code, words;
    uint8_t on_device, has_epochs;
    char text[160];
} published_t;

static size_t
window_published_bytes(int size)
{
    return sizeof(published_t) + (size_t)size * sizeof(int32_t);
}

static published_t *
published_of(char *all, int size, int rank)
{
    return (published_t *)(void *)(all
                                   + (size_t)rank
                                         * window_published_bytes(size));
}

// Takes words, and exports the memory.
static int
window_describe(wm_window_t *window, const wm_window_given_t *given,
                published_t *mine, wm_error_t *err)
{
    int32_t *indices = (int32_t *)(void *)(mine + 1);
    int code = 0;
    if (given->on_device && given->nbytes > 0) {
        if (given->memory.kind != WM_MEMORY_DEVICE)
            code = wm_error_set(
                err, WM_ERR_VALUE, 0,
                "memory: a window must be device memory or host memory, not "
                "managed memory: use wm.empty(), or Win.Allocate");
        else if (given->memory.exportable)
            code = wm_rkey_export(given->data, &given->memory, &mine->place,
                                  err);
        else if (window->size > 1)
            code = wm_error_set(
                err, WM_ERR_VALUE, 0,
                "memory: other processes cannot map GPU memory of a pool or "
                "of virtual memory management: give memory of wm.empty(), or "
                "use Win.Allocate");
    }
    window->words = wm_window_lock_acquire_words();
    if (code == 0 && window->words < 0)
        code = wm_error_set(err, WM_ERR_MEMORY, 0,
                            "no words are left for another window, of %d in a "
                            "process: free a window",
                            WM_WINDOW_WORDS);
    mine->words = window->words;
    if (wm_epochs_new(window->comm->peers, window->size, &window->epochs, NULL)
        == 0) {
        mine->has_epochs = 1;
        for (int i = 0; i < window->size; ++i)
            indices[i] = window->epochs->neighbors[i].index;
    }
    return code;
}

// Connects the part of a rank, as it has told.
static int
window_connect(wm_window_t *window, int rank, const published_t *its,
               wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[rank];
    wm_peer_t *peer = window->comm->peers[rank];
    const int32_t *indices = (const int32_t *)(const void *)(its + 1);
    part->nbytes = its->nbytes;
    part->unit = its->unit;
    part->on_device = its->on_device;
    part->place = its->place;
    window->mixed |= !part->on_device && part->nbytes > 0;
    if (!wm_node_shares(peer))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "%s is on another host: windows over GPU memory "
                            "are for the ranks of one host so far; use Send "
                            "and Recv, or a window of host memory",
                            wm_comm_name(window->comm, rank).text);
    part->words = wm_window_lock_words(peer, its->words);
    part->index = its->words;
    if (part->words == NULL
        || (rank != window->comm->rank && part->on_device && part->nbytes > 0
            && !wm_rkey_holds(&part->place, part->nbytes)))
        return wm_comm_damaged(window->comm, rank, err);
    if (window->epochs != NULL
        && wm_epochs_connect(window->epochs, rank, indices[window->comm->rank],
                             -1, err)
               < 0)
        return wm_comm_damaged(window->comm, rank, err);
    return 0;
}

// Maps the part of a rank.
static int
window_map(wm_window_t *window, int rank, wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[rank];
    if (!part->on_device || part->nbytes == 0 || rank == window->comm->rank)
        return 0;
    if (window->device < 0)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the window has GPU memory of %s, and this rank "
                            "has no GPU to access it with",
                            wm_comm_name(window->comm, rank).text);
    int code = wm_mapping_reach(window->comm->peers[rank], &part->place,
                                window->device, &part->mapping, err);
    if (code == 0)
        part->memory = wm_mapping_at(part->mapping, &part->place);
    return code;
}

static int
window_learn(wm_window_t *window, char *all, wm_error_t *err)
{
    int size = window->size, code = 0;
    bool epochs = true;
    for (int rank = 0; rank < size; ++rank) {
        const published_t *its = published_of(all, size, rank);
        epochs &= its->has_epochs == 1;
        if (its->code < 0)
            return wm_error_set(
                err, its->code > WM_ERR_PYTHON ? its->code : WM_ERR_STATE, 0,
                "%s failed in the creation of this window: %.150s",
                wm_comm_name(window->comm, rank).text, its->text);
    }
    wm_engine_lock();
    if (!epochs) {
        wm_epochs_free(window->epochs);
        window->epochs = NULL;
    }
    for (int rank = 0; rank < size && code == 0; ++rank)
        code = window_connect(window, rank, published_of(all, size, rank),
                              err);
    for (int rank = 0; rank < size && code == 0; ++rank)
        code = window_map(window, rank, err);
    wm_engine_unlock();
    return code;
}

static int
window_exchange(wm_window_t *window, const wm_window_given_t *given,
                char *memory, wm_error_t *err)
{
    wm_error_t why;
    int size = window->size, code = given->code;
    size_t each = window_published_bytes(size);
    published_t *mine = published_of(memory, size, size);
    mine->nbytes = given->nbytes;
    mine->unit = given->unit;
    mine->on_device = given->on_device;
    wm_engine_lock();
    if (code == 0) {
        code = window_describe(window, given, mine, &why);
        if (code < 0)
            wm_error_cut(why.text, sizeof mine->text, mine->text);
    }
    else if (given->text != NULL)
        wm_error_cut(given->text, sizeof mine->text, mine->text);
    mine->code = code;
    wm_engine_unlock();
    int gathered = wm_coll_gather(window->comm, mine, each, memory, err);
    if (gathered < 0)
        return gathered;
    if (code < 0) {
        if (given->code == 0)
            *err = why;
        else
            (void)wm_error_set(err, code, 0, "%.150s", mine->text);
        return code;
    }
    code = window_learn(window, memory, err);
    for (int rank = 0; rank < size; ++rank)
        if (published_of(memory, size, rank)->code < 0)
            return code; // all have seen it
    int told = wm_preflight_tell(window->comm, WM_COLL_BARRIER, code,
                                 code < 0 ? &why : err);
    return code < 0 ? code : told;
}

int
wm_window_open(wm_comm_t *comm, const wm_window_given_t *given,
               wm_window_t **made, wm_error_t *err)
{
    size_t parts = (size_t)comm->size * sizeof(wm_window_part_t);
    wm_window_t *window = calloc(1, sizeof *window + parts);
    char *memory = calloc((size_t)comm->size + 1,
                          window_published_bytes(comm->size));
    if (window == NULL || memory == NULL) {
        free(window);
        free(memory);
        wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        (void)!wm_preflight_tell(comm, WM_COLL_BARRIER, WM_ERR_MEMORY, NULL);
        return WM_ERR_MEMORY;
    }
    window->comm = comm;
    window->size = comm->size;
    window->words = -1;
    window->dynamic = window->mixed = given->dynamic;
    pthread_mutex_init(&window->lock, NULL);
    window->device = given->on_device && given->nbytes > 0
                         ? given->memory.device
                         : wm_device_current();
    if (window->device < 0)
        window->device = wm_device_default();
    int code = window_exchange(window, given, memory, err);
    if (given->on_device)
        window->parts[comm->rank].memory = given->data;
    free(memory);
    if (code == 0)
        *made = window;
    else
        wm_window_close(window);
    return code;
}

void
wm_window_close(wm_window_t *window)
{
    if (window == NULL)
        return;
    wm_window_release_ended(window);
    if (window->opened)
        wm_stream_release(window->device, window->stream);
    if (window->signal.word != NULL)
        wm_signal_release(&window->signal);
    wm_engine_lock();
    for (int rank = 0; rank < window->size; ++rank)
        if (window->parts[rank].mapping != NULL)
            wm_mapping_release(window->parts[rank].mapping);
    wm_window_detach_all(window);
    wm_epochs_free(window->epochs);
    wm_window_lock_release_words(window->words);
    wm_engine_unlock();
    free(window->attached);
    pthread_mutex_destroy(&window->lock);
    free(window);
}
