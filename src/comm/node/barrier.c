// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/barrier.h"

#include <stdlib.h>

#include "comm/node/barrier_ranks.h"

static int idle[WM_BARRIER_ROWS]; // unused slots
static int idle_count = -1;
static wm_barrier_t *closed; // closed by us, not yet by all ranks
static _Atomic uint32_t *
arrival_word(const wm_peer_t *peer, int index, int bank)
{
    return bank == 0 ? &peer->segment->arrived[index]
                     : &wm_exchange_area_pointer(peer, index)->aside[bank - 1];
}

// Makes slots unused again that all ranks have closed.
static void
look_at_closed(void)
{
    if (idle_count < 0)
        for (idle_count = 0; idle_count < WM_BARRIER_ROWS; ++idle_count)
            idle[idle_count] = WM_BARRIER_ROWS - 1 - idle_count;
    for (wm_barrier_t **link = &closed, *barrier; (barrier = *link) != NULL;) {
        if (wm_barrier_all_entered(barrier) == 0
            || !wm_barrier_all_arrived(barrier, 0)) {
            link = &barrier->next;
            continue;
        }
        *link = barrier->next;
        wm_barrier_row_release(barrier_index_of(barrier));
        free(barrier);
    }
}

wm_barrier_row_info_t
wm_barrier_row_acquire(void)
{
    wm_barrier_row_info_t info = {.index = -1};
    look_at_closed();
    // Slots that were used before have memory, and are taken first.
    if (idle_count == 0 || !wm_exchange_area_open(idle[idle_count - 1]))
        return info;
    info.index = idle[--idle_count];
    const wm_peer_t *self = wm_node_self();
    wm_exchange_area_t *area = wm_exchange_area_pointer(self, info.index);
    // Peers hear of the row by a message, so no store is a fence here.
    for (int i = 0; i < WM_DECISION_LOG; ++i)
        atomic_store_explicit(&area->decision_log[i], 0, memory_order_relaxed);
    atomic_store(&self->segment->barrier_rows[info.index].abort_flag, 0);
    info.calls = atomic_load(&area->blocking.count);
    for (int bank = 0; bank < WM_BARRIER_BANKS; ++bank)
        info.arrived[bank] = atomic_load(arrival_word(self, info.index, bank));
    return info;
}

void
wm_barrier_row_release(int index)
{
    idle[idle_count++] = index;
}

int
wm_barrier_rows_left(void)
{
    look_at_closed();
    return idle_count;
}

void
wm_barrier_close(wm_barrier_t *barrier)
{
    wm_barrier_enter(barrier, false); // we wait for nobody
    (void)wm_barrier_epoch_begin(barrier);
    wm_barrier_arrive(barrier, 0);
    barrier->next = closed;
    closed = barrier;
}

wm_barrier_t *
wm_barrier_new(int rank, int size, int bank)
{
    wm_barrier_t *barrier = calloc(
        1, sizeof *barrier + (size_t)size * sizeof barrier->of[0]);
    if (barrier != NULL) {
        barrier->rank = rank;
        barrier->size = size;
        barrier->bank = bank;
    }
    return barrier;
}

void
wm_barrier_set(wm_barrier_t *barrier, int rank, const wm_peer_t *peer,
               const wm_barrier_row_info_t *info)
{
    barrier->of[rank].slot = &peer->segment->barrier_rows[info->index];
    barrier->of[rank].area = wm_exchange_area_pointer(peer, info->index);
    barrier->of[rank].arrived = arrival_word(peer, info->index, barrier->bank);
    barrier->of[rank].base = info->arrived[barrier->bank];
    barrier->of[rank].calls = info->calls;
}

int
wm_barrier_size(const wm_barrier_t *barrier)
{
    return barrier->size;
}

int
wm_barrier_rank(const wm_barrier_t *barrier)
{
    return barrier->rank;
}

static size_t
epoch_parity(const wm_barrier_t *barrier)
{
    return barrier->steps / WM_BARRIER_STEPS % 2;
}

void *
wm_barrier_epoch_begin(wm_barrier_t *barrier)
{
    barrier->before = atomic_load(barrier->of[barrier->rank].arrived);
    barrier->steps += WM_BARRIER_STEPS;
    barrier->arrived = barrier->step = 0;
    return (void *)wm_barrier_published(barrier, barrier->rank);
}

void
wm_barrier_epoch_abandon(wm_barrier_t *barrier)
{
    atomic_store(barrier->of[barrier->rank].arrived, barrier->before);
    barrier->steps -= WM_BARRIER_STEPS;
}

void
wm_barrier_arrive(wm_barrier_t *barrier, int step)
{
    atomic_store_explicit(barrier->of[barrier->rank].arrived,
                          barrier->of[barrier->rank].base + barrier->steps
                              + (uint32_t)step,
                          memory_order_release);
}

// Returns the steps by which a rank is ahead of the beginning of this epoch.
static int32_t
barrier_steps_of(const wm_barrier_t *barrier, int rank)
{
    uint32_t arrived = atomic_load_explicit(barrier->of[rank].arrived,
                                            memory_order_acquire);
    return (int32_t)(arrived - barrier->of[rank].base - barrier->steps);
}

bool
wm_barrier_all_arrived(wm_barrier_t *barrier, int step)
{
    if (step != barrier->step) {
        barrier->step = step;
        barrier->arrived = 0;
    }
    while (barrier->arrived < barrier->size
           && barrier_steps_of(barrier, barrier->arrived) >= step)
        ++barrier->arrived;
    return barrier->arrived == barrier->size;
}

bool
wm_barrier_any_arrived(const wm_barrier_t *barrier, int step)
{
    int rank = 0;
    while (rank < barrier->size && barrier_steps_of(barrier, rank) < step)
        ++rank;
    return rank < barrier->size;
}

const void *
wm_barrier_published(const wm_barrier_t *barrier, int rank)
{
    return barrier->of[rank]
        .area->published[barrier->bank][epoch_parity(barrier)];
}

void
wm_barrier_enter(wm_barrier_t *barrier, bool takes_part)
{
    wm_barrier_blocking_t *own = &barrier->of[barrier->rank].area->blocking;
    uint32_t call = barrier->of[barrier->rank].calls + ++barrier->calls;
    if (takes_part) {
        atomic_store_explicit(&own->taken_part[1],
                              atomic_load(&own->taken_part[0]),
                              memory_order_release);
        atomic_store_explicit(&own->taken_part[0], call, memory_order_release);
    }
    atomic_store_explicit(&own->count, call, memory_order_release);
}

// A rank that takes part in a call does not leave it before this rank has
// entered it. So the rank takes part in at most one later call while this rank
// is in this one, and this call is one of its last two.
static bool
has_taken_part(const wm_barrier_blocking_t *of, uint32_t call)
{
    return atomic_load_explicit(&of->taken_part[0], memory_order_acquire)
               == call
           || atomic_load_explicit(&of->taken_part[1], memory_order_acquire)
                  == call;
}

// Returns the number of calls by which a rank is ahead of this rank, and
// writes whether it has taken part in this rank's call.
static int32_t
calls_ahead(const wm_barrier_t *barrier, int rank, bool *takes_part)
{
    const wm_barrier_blocking_t *of = &barrier->of[rank].area->blocking;
    uint32_t call = barrier->of[rank].calls + barrier->calls;
    uint32_t count = atomic_load_explicit(&of->count, memory_order_acquire);
    *takes_part = has_taken_part(of, call);
    return (int32_t)(count - call);
}

int
wm_barrier_all_entered(const wm_barrier_t *barrier)
{
    int all_take_part = 1;
    bool takes_part;
    for (int rank = 0; rank < barrier->size; ++rank) {
        if (calls_ahead(barrier, rank, &takes_part) < 0)
            return 0;
        if (!takes_part)
            all_take_part = -1;
    }
    return all_take_part;
}

bool
wm_barrier_any_passed(const wm_barrier_t *barrier)
{
    bool takes_part;
    for (int rank = 0; rank < barrier->size; ++rank)
        if (calls_ahead(barrier, rank, &takes_part) > 0 && !takes_part)
            return true;
    return false;
}

bool
wm_barrier_has_declined(const wm_barrier_t *barrier, int rank)
{
    bool takes_part;
    return calls_ahead(barrier, rank, &takes_part) >= 0 && !takes_part;
}

wm_signature_area_t *
wm_barrier_signatures(const wm_barrier_t *barrier, int rank)
{
    return &barrier->of[rank].area->signatures;
}
