// SPDX-License-Identifier: BSD-3-Clause
// The beginning and the end of a halo: its counters, the end of the work that
// was enqueued last, and what it is as a waiter.
#include <stdlib.h>
#include <string.h>

#include "array/kernels.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/direct/symm_group.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/engine.h"
#include "comm/rma/halo_state.h"
#include "cuda/lock.h"
#include "cuda/word.h"

static void
find_peers(wm_halo_t *halo)
{
    int rank = halo->comm->rank;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, rank, at);
        bool known = neighbor < 0 || neighbor == rank;
        for (int i = 0; i < halo->peer_count && !known; ++i)
            known = halo->peers[i] == neighbor;
        if (!known)
            halo->peers[halo->peer_count++] = neighbor;
    }
}

int
wm_halo_new(wm_comm_t *comm, const wm_halo_shape_t *shape,
            const int64_t *block, int64_t lines, wm_halo_t **made,
            wm_error_t *err)
{
    wm_waiters_collect();
    wm_halo_t *halo = calloc(1, sizeof *halo);
    if (halo == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    pthread_mutex_init(&halo->lock, NULL);
    pthread_mutex_init(&halo->end_lock, NULL);
    halo->comm = comm;
    halo->number = ++comm->halos;
    halo->shape = *shape;
    halo->device = -1;
    halo->lines = lines;
    halo->told = block != NULL;
    if (halo->told)
        memcpy(halo->block, block, sizeof halo->block);
    find_peers(halo);
    wm_waiter_add(&halo->waiter, &wm_halo_class, comm);
    *made = halo;
    return 0;
}

void
wm_halo_set_free(wm_halo_set_t *set)
{
    if (set == NULL)
        return;
    wm_engine_lock();
    for (int i = 0; i < set->mapped; ++i)
        wm_mapping_release(set->mappings[i]);
    wm_engine_unlock();
    free(set->mappings);
    free(set->begins);
    free(set->sums);
    if (set->memory != NULL)
        wm_block_free(set->memory, 0, NULL, NULL);
    if (set->table != NULL)
        wm_block_free(set->table, 0, NULL, NULL);
    free(set);
}

static void
close_counters(wm_halo_t *halo)
{
    wm_engine_lock(); // a look may be about to write the flag
    _Atomic uint32_t *abort = halo->abort;
    halo->abort = NULL;
    wm_epochs_free(halo->epochs);
    wm_engine_unlock();
    wm_symm_memory_free(halo->counters);
    if (abort != NULL)
        wm_pinned_free((void *)abort);
    halo->epochs = NULL;
    halo->counters = NULL;
    halo->device = -1;
}

int
wm_halo_open_own(wm_halo_t *halo, wm_error_t *err)
{
    return halo->own != NULL ? 0
                             : wm_stream_create(halo->device, &halo->own, err);
}

bool
wm_halo_has_tickets(const wm_halo_t *halo)
{
    return halo->counters != NULL && halo->epochs == NULL;
}

const unsigned long long *
wm_halo_ticket_word(const wm_halo_t *halo)
{
    const char *own = halo->counters->ranks[halo->comm->rank].memory
                      + (size_t)halo->comm->size * WM_HALO_LINE;
    const void *word = own + WM_HALO_TICKET;
    return word;
}

int
wm_halo_await_ticket(wm_halo_t *halo, CUstream stream, wm_error_t *err)
{
    return wm_halo_has_tickets(halo)
               ? wm_word_wait_long(halo->device, stream,
                                   wm_halo_ticket_word(halo), halo->tickets,
                                   err)
               : wm_stream_wait_event(halo->device, stream, halo->ended, err);
}

// Records an event behind the work that was enqueued last, on a stream for
// this alone: one of the program may have been destroyed, and our own may be
// captured.
static int
record_end_lock_held(wm_halo_t *halo)
{
    uint64_t ticket = atomic_load(&halo->tickets);
    int code = 0;
    if (halo->noted == ticket)
        return 0;
    if (halo->asking == NULL)
        code = wm_stream_create(halo->device, &halo->asking, NULL);
    if (code == 0 && halo->ended == NULL)
        code = wm_event_acquire(halo->device, &halo->ended, NULL);
    if (code == 0)
        code = wm_halo_await_ticket(halo, halo->asking, NULL);
    if (code == 0)
        code = wm_event_record(halo->device, halo->ended, halo->asking, NULL);
    if (code == 0)
        halo->noted = ticket;
    return code;
}

// Returns true if the work that was enqueued last is not known to have ended.
static bool
halo_is_busy(wm_halo_t *halo)
{
    return atomic_load(&halo->tickets) != atomic_load(&halo->passed);
}

// Waits for the work that was enqueued last, but in a capture.
void
wm_halo_wait(wm_halo_t *halo)
{
    if (!halo_is_busy(halo))
        return;
    wm_lock(&halo->end_lock);
    int code = record_end_lock_held(halo);
    pthread_mutex_unlock(&halo->end_lock);
    if (code == 0)
        (void)!wm_event_synchronize(halo->device, halo->ended, NULL);
}

bool
wm_halo_has_ended(wm_halo_t *halo)
{
    if (!halo_is_busy(halo))
        return true;
    if (pthread_mutex_trylock(&halo->end_lock) != 0)
        return false; // another thread asks
    int code = record_end_lock_held(halo);
    bool ended = code == 0 ? wm_event_has_ended(halo->device, halo->ended)
                           : wm_event_look_for_errors(halo->device, NULL) < 0;
    if (code == 0 && ended)
        atomic_store(&halo->passed, halo->noted);
    pthread_mutex_unlock(&halo->end_lock);
    return ended;
}

void
wm_halo_drop(wm_halo_t *halo)
{
    if (halo == NULL)
        return;
    wm_waiter_drop(&halo->waiter);
    wm_waiters_collect();
}

void
wm_halo_free(wm_halo_t *halo)
{
    if (halo != NULL)
        wm_halo_wait(halo);
    wm_halo_drop(halo);
}

// --- the halo as a waiter -------------------------------------------------

static bool
halo_has_ended(wm_waiter_t *waiter)
{
    return wm_halo_has_ended((wm_halo_t *)waiter);
}

// Reports, once, an exchange that has not ended for long: no thread may be
// waiting for it that would say so.
static void
halo_report(wm_waiter_t *waiter, int64_t now, int64_t limit)
{
    wm_halo_t *halo = (wm_halo_t *)waiter;
    uint64_t ticket = atomic_load(&halo->tickets);
    wm_words_t words = {.length = 0};
    if (!halo_is_busy(halo) || ticket != halo->seen) {
        halo->seen = ticket;
        halo->since = now;
        return;
    }
    if (halo->since < 0 || now - halo->since < limit
        || wm_halo_has_ended(halo))
        return;
    wm_words_add(&words,
                 "%s: an exchange of a wm.Halo has not ended for %d s: its "
                 "stream has other work before it, or the stream of a "
                 "neighbour has not come to this exchange; all ranks make "
                 "the same exchanges, and replay plans and graphs equally "
                 "often",
                 wm_hang_who(), (int)((now - halo->since) / 1000000));
    halo->since = -1;
    wm_words_print(&words);
}

static bool
halo_end_waits(wm_waiter_t *waiter, int rank)
{
    wm_halo_t *halo = (wm_halo_t *)waiter;
    if (halo->abort != NULL)
        atomic_store(halo->abort, 1 + (uint32_t)rank);
    return halo->abort != NULL;
}

static void
halo_free(wm_waiter_t *waiter)
{
    wm_halo_t *halo = (wm_halo_t *)waiter;
    wm_halo_set_t *next;
    for (wm_halo_set_t *set = halo->sets; set != NULL; set = next) {
        next = set->next;
        wm_halo_set_free(set);
    }
    while (halo->memories > 0)
        wm_symm_memory_free(halo->memory[--halo->memories]);
    if (halo->own != NULL)
        wm_stream_destroy(halo->device, halo->own);
    if (halo->asking != NULL)
        wm_stream_destroy(halo->device, halo->asking);
    if (halo->ended != NULL)
        wm_event_release(halo->device, halo->ended);
    close_counters(halo);
    pthread_mutex_destroy(&halo->lock);
    pthread_mutex_destroy(&halo->end_lock);
    free(halo);
}

const wm_waiter_class_t wm_halo_class = {
    .name = "halo",
    .has_ended = halo_has_ended,
    .report = halo_report,
    .end_waits = halo_end_waits,
    .free = halo_free,
};

// --- what the GPUs need ---------------------------------------------------

typedef struct {
    int words[WM_HALO_PEERS]; // by neighbour
    int peers[WM_HALO_PEERS];
} connection_t;

// Returns the index of the words that a rank has for us.
static int
words_for(const connection_t *its, int rank)
{
    for (int i = 0; i < WM_HALO_PEERS; ++i)
        if (its->peers[i] == rank)
            return its->words[i];
    return -1;
}

static int
take_words(wm_halo_t *halo, connection_t *own, wm_error_t *err)
{
    wm_peer_t *peers[WM_HALO_PEERS];
    for (int i = 0; i < halo->peer_count; ++i)
        peers[i] = halo->comm->peers[halo->peers[i]];
    wm_engine_lock();
    int code = wm_epochs_new(peers, halo->peer_count, &halo->epochs, err);
    wm_engine_unlock();
    for (int i = 0; i < WM_HALO_PEERS; ++i) {
        bool used = code == 0 && i < halo->peer_count;
        own->peers[i] = used ? halo->peers[i] : -1;
        own->words[i] = used ? halo->epochs->neighbors[i].index : -1;
    }
    return code;
}

// Makes the words by which streams wait, where processes take turns on a GPU.
static int
connect_words(wm_halo_t *halo, wm_error_t *err)
{
    wm_comm_t *comm = halo->comm;
    connection_t own, *all = calloc((size_t)comm->size, sizeof *all);
    int code = all == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : take_words(halo, &own, err);
    code = wm_coll_exchange(comm, WM_HALO_CALL, code, &own, sizeof own, all,
                            err);
    if (code < 0) {
        free(all);
        return code;
    }
    wm_engine_lock();
    for (int i = 0; i < halo->peer_count && code == 0; ++i)
        code = wm_epochs_connect(halo->epochs, i,
                                 words_for(&all[halo->peers[i]], comm->rank),
                                 halo->device, err);
    if (code == 0)
        halo->epochs->revoked = &comm->revoked;
    wm_engine_unlock();
    free(all);
    return wm_coll_exchange(comm, WM_HALO_CALL, code, NULL, 0, NULL, err);
}

// Loads the kernels here: streams that wait for others could block that.
static int
prepare_kernels(int device, wm_error_t *err)
{
    int code = wm_halo_prepare(device, err);
    return code < 0 ? code
                    : wm_kernels_prepare(device, WM_KERNELS_REDUCE, err);
}

static int
make_abort(wm_halo_t *halo, wm_error_t *err)
{
    void *word;
    int code = wm_pinned_alloc(sizeof *halo->abort, &word, err);
    if (code == 0) {
        halo->abort = word;
        atomic_store(halo->abort, 0);
    }
    return code;
}

static int
make_counters(wm_halo_t *halo, int device, bool *unreached, wm_error_t *err)
{
    wm_comm_t *comm = halo->comm;
    size_t nbytes = WM_HALO_BYTES(comm->size);
    const wm_symm_group_t group = wm_symm_group_of(comm, WM_HALO_CALL, nbytes);
    int code = prepare_kernels(device, err);
    if (code == 0)
        code = make_abort(halo, err);
    code = wm_coll_exchange(comm, WM_HALO_CALL, code, NULL, 0, NULL, err);
    if (code == 0)
        code = wm_symm_memory_make(&group, device, false, nbytes, NULL,
                                   &halo->counters, unreached, err);
    return code;
}

int
wm_halo_open_counters(wm_halo_t *halo, int device, bool *unreached,
                      wm_error_t *err)
{
    int code = 0;
    if (halo->comm->size == 1)
        code = prepare_kernels(device, err);
    else
        code = make_counters(halo, device, unreached, err);
    if (code < 0 || *unreached) {
        close_counters(halo);
        return code;
    }
    halo->device = device;
    if (halo->counters != NULL && halo->counters->multiprocessors == 0)
        code = connect_words(halo, err);
    if (code < 0)
        close_counters(halo); // they are made anew next time
    return code;
}
