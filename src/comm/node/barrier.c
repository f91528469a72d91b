// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/barrier.h"

#include <stdlib.h>

#include "comm/node/node.h"
#include "cuda/word.h"

static int idle[WM_BARRIER_SLOTS]; // unused slots
static int idle_count = -1;
static wm_barrier_t *closed; // closed by us, not yet by all ranks
// The values that our words of streams will have when the streams have run.
static _Atomic uint32_t promised[WM_BARRIER_SLOTS];

struct wm_barrier {
    struct wm_barrier *next; // next closed one
    int rank, size;
    int bank;
    uint32_t steps;  // steps before this epoch
    uint32_t before; // our word at that time
    uint32_t calls;  // blocking calls so far
    int arrived;     // ranks before this one have arrived at `step`
    int step;
    struct {
        wm_barrier_slot_t *slot;
        wm_exchange_area_t *area;
        _Atomic uint32_t *arrived; // steps of all epochs
        uint32_t base;             // its value before the first epoch
        uint32_t calls;            // its blocking calls at that time
        uint32_t streams; // its word of streams when we began to count
    } of[];
};

// An entry of the decision log: the call, the number of ranks that have voted,
// the number that have read the decision, and a veto.
#define ENTRY_CALL(entry) ((uint32_t)((entry) >> 32))
#define VOTED ((uint64_t)1)
#define READ ((uint64_t)1 << 8)
#define VETOED ((uint64_t)1 << 16)
#define ENTRY_COUNT(entry, of) ((int)((entry) / (of)) & 0xff)

static _Atomic uint32_t *
arrival_word(const wm_peer_t *peer, int index, int bank)
{
    return bank == 0 ? &peer->segment->arrived[index]
                     : &wm_exchange_area_pointer(peer, index)->aside[bank - 1];
}

// Returns the index of our slot.
static int
barrier_index_of(const wm_barrier_t *barrier)
{
    return (int)(barrier->of[barrier->rank].slot
                 - wm_node_self()->segment->barrier_slots);
}

// Makes slots unused again that all ranks have closed.
static void
look_at_closed(void)
{
    if (idle_count < 0)
        for (idle_count = 0; idle_count < WM_BARRIER_SLOTS; ++idle_count)
            idle[idle_count] = WM_BARRIER_SLOTS - 1 - idle_count;
    for (wm_barrier_t **link = &closed, *barrier; (barrier = *link) != NULL;) {
        if (wm_barrier_all_entered(barrier) == 0
            || !wm_barrier_all_arrived(barrier, 0)) {
            link = &barrier->next;
            continue;
        }
        *link = barrier->next;
        wm_barrier_slot_release(barrier_index_of(barrier));
        free(barrier);
    }
}

wm_barrier_slot_info_t
wm_barrier_slot_acquire(void)
{
    wm_barrier_slot_info_t info = {.index = -1};
    look_at_closed();
    // Slots that were used before have memory, and are taken first.
    if (idle_count == 0 || !wm_exchange_area_open(idle[idle_count - 1]))
        return info;
    info.index = idle[--idle_count];
    const wm_peer_t *self = wm_node_self();
    wm_exchange_area_t *area = wm_exchange_area_pointer(self, info.index);
    for (int i = 0; i < WM_DECISION_LOG; ++i)
        atomic_store(&area->decision_log[i], 0);
    atomic_store(&self->segment->barrier_slots[info.index].abort_flag, 0);
    info.calls = atomic_load(&area->blocking.count);
    for (int bank = 0; bank < WM_BARRIER_BANKS; ++bank)
        info.arrived[bank] = atomic_load(arrival_word(self, info.index, bank));
    return info;
}

void
wm_barrier_slot_release(int index)
{
    idle[idle_count++] = index;
}

int
wm_barrier_slots_left(void)
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
               const wm_barrier_slot_info_t *info)
{
    barrier->of[rank].slot = &peer->segment->barrier_slots[info->index];
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
wm_barrier_enter(wm_barrier_t *barrier, bool capable)
{
    wm_barrier_blocking_t *own = &barrier->of[barrier->rank].area->blocking;
    uint32_t call = barrier->of[barrier->rank].calls + ++barrier->calls;
    if (capable) {
        atomic_store_explicit(&own->asked[1], atomic_load(&own->asked[0]),
                              memory_order_release);
        atomic_store_explicit(&own->asked[0], call, memory_order_release);
    }
    atomic_store_explicit(&own->count, call, memory_order_release);
}

// A rank that is capable does not leave a call before this rank has entered
// it. So it has entered at most one later capable call while this rank is in
// this one, and this call is one of its last two.
static bool
has_asked(const wm_barrier_blocking_t *of, uint32_t call)
{
    return atomic_load_explicit(&of->asked[0], memory_order_acquire) == call
           || atomic_load_explicit(&of->asked[1], memory_order_acquire)
                  == call;
}

int
wm_barrier_all_entered(const wm_barrier_t *barrier)
{
    int all_ask = 1;
    for (int rank = 0; rank < barrier->size; ++rank) {
        const wm_barrier_blocking_t *of = &barrier->of[rank].area->blocking;
        uint32_t call = barrier->of[rank].calls + barrier->calls;
        uint32_t count = atomic_load_explicit(&of->count,
                                              memory_order_acquire);
        if ((int32_t)(count - call) < 0)
            return 0;
        if (!has_asked(of, call))
            all_ask = -1;
    }
    return all_ask;
}

static _Atomic uint64_t *
log_entry(const wm_barrier_t *barrier, uint32_t call)
{
    return &barrier->of[0].area->decision_log[call % WM_DECISION_LOG];
}

bool
wm_barrier_vote(const wm_barrier_t *barrier, uint32_t call, bool capable)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry), next;
    do {
        // An entry that all have read is taken by the call one log later
        // only, which may not have come yet.
        if (ENTRY_CALL(now) != call
            && (now == 0 ? call > WM_DECISION_LOG
                         : ENTRY_CALL(now) != call - WM_DECISION_LOG
                               || ENTRY_COUNT(now, READ) < barrier->size))
            return false;
        next = ENTRY_CALL(now) == call ? now : (uint64_t)call << 32;
        next += capable ? VOTED : VOTED + READ;
        next |= capable ? 0 : VETOED;
    } while (!atomic_compare_exchange_weak(entry, &now, next));
    return true;
}

wm_decision_t
wm_barrier_decision(const wm_barrier_t *barrier, uint32_t call)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry);
    if ((now & VETOED) == 0 && ENTRY_COUNT(now, VOTED) < barrier->size)
        return WM_DECISION_OPEN;
    atomic_fetch_add(entry, READ);
    return (now & VETOED) != 0 ? WM_DECISION_MPI : WM_DECISION_GPUS;
}

void
wm_barrier_withdraw(const wm_barrier_t *barrier, uint32_t call)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry);
    while (ENTRY_CALL(now) == call && (now & VETOED) == 0
           && ENTRY_COUNT(now, VOTED) < barrier->size
           && !atomic_compare_exchange_weak(entry, &now, now | VETOED))
        ;
}

uint32_t
wm_barrier_streams_now(const wm_barrier_t *barrier)
{
    return atomic_load(&barrier->of[barrier->rank].slot->streams);
}

uint32_t
wm_barrier_streams_at(const wm_barrier_t *barrier)
{
    return wm_barrier_streams_now(barrier)
           - barrier->of[barrier->rank].streams;
}

void
wm_barrier_set_streams(wm_barrier_t *barrier, int rank, uint32_t now)
{
    barrier->of[rank].streams = now;
}

void
wm_barrier_promise(const wm_barrier_t *barrier, uint32_t value)
{
    atomic_store(&promised[barrier_index_of(barrier)],
                 barrier->of[barrier->rank].streams + value);
}

// Returns true if the word of our slot has reached its promised value.
static bool
has_kept(int index)
{
    return wm_word_reached(
        &wm_node_self()->segment->barrier_slots[index].streams,
        atomic_load(&promised[index]));
}

bool
wm_barrier_have_kept(const wm_barrier_t *barrier)
{
    return has_kept(barrier_index_of(barrier));
}

bool
wm_barrier_any_stream_waits(void)
{
    int index = wm_node_self() == NULL ? WM_BARRIER_SLOTS : 0;
    while (index < WM_BARRIER_SLOTS && has_kept(index))
        ++index;
    return index < WM_BARRIER_SLOTS;
}

void
wm_barrier_leave(const wm_barrier_t *barrier, uint32_t value)
{
    atomic_store(&barrier->of[barrier->rank].slot->streams,
                 barrier->of[barrier->rank].streams + value);
}

void
wm_barrier_leave_from(const wm_barrier_t *barrier, uint32_t from,
                      uint32_t value)
{
    uint32_t base = barrier->of[barrier->rank].streams, is = base + from;
    (void)atomic_compare_exchange_strong(
        &barrier->of[barrier->rank].slot->streams, &is, base + value);
}

int
wm_barrier_enqueue_arrive(const wm_barrier_t *barrier, int device,
                          CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_write(device, stream,
                         &barrier->of[barrier->rank].slot->streams,
                         barrier->of[barrier->rank].streams + value, err);
}

int
wm_barrier_enqueue_wait(const wm_barrier_t *barrier, int rank, int device,
                        CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_wait(device, stream, &barrier->of[rank].slot->streams,
                        barrier->of[rank].streams + value, err);
}

wm_word_op_t
wm_barrier_stream_word(const wm_barrier_t *barrier, int rank, uint32_t value)
{
    return (wm_word_op_t){
        .waits = rank != barrier->rank,
        .word = &barrier->of[rank].slot->streams,
        .value = barrier->of[rank].streams + value,
    };
}

bool
wm_barrier_stream_arrived(const wm_barrier_t *barrier, int rank,
                          uint32_t value)
{
    return wm_word_reached(&barrier->of[rank].slot->streams,
                           barrier->of[rank].streams + value);
}

// A round has three epochs. A word that holds an epoch, or the next one,
// passes a wait for that epoch (modulo 2^32); a word of the epoch before does
// not. A rank waiting for an epoch finds another rank at this epoch, at the
// next one, or still at the one before, as no rank leaves an epoch before all
// have arrived. So three epochs are enough, and the next round begins anew.
#define ROUND_EPOCHS 3
#define ROUND_EPOCH(number) ((uint32_t)(number)*0x55555555u)

_Static_assert(ROUND_EPOCHS *WM_BARRIER_RANKS + 1 <= WM_WORD_OPS, "at once");

// Adds the operations by which all streams arrive at a value of a word.
// Returns how many.
static int
add_epoch(const wm_barrier_t *barrier, size_t word, uint32_t value,
          wm_word_op_t *ops)
{
    int count = 1;
    for (int rank = 0; rank < barrier->size; ++rank) {
        bool waits = rank != barrier->rank;
        ops[waits ? count++ : 0] = (wm_word_op_t){
            .waits = waits,
            .word = (_Atomic uint32_t *)((char *)barrier->of[rank].slot
                                         + word),
            .value = value,
        };
    }
    return count;
}

void
wm_barrier_begin_rounds(const wm_barrier_t *barrier)
{
    wm_barrier_slot_t *slot = barrier->of[barrier->rank].slot;
    atomic_store(&slot->round, ROUND_EPOCH(ROUND_EPOCHS - 1));
    atomic_store(&slot->epochs, 0);
}

int
wm_barrier_enqueue_round(const wm_barrier_t *barrier, int device,
                         CUstream stream, wm_error_t *err)
{
    wm_word_op_t ops[WM_WORD_OPS];
    int count = 0;
    for (int epoch = 0; epoch < ROUND_EPOCHS; ++epoch) {
        count += add_epoch(barrier, offsetof(wm_barrier_slot_t, round),
                           ROUND_EPOCH(epoch), ops + count);
        // All have arrived, so no rank waits for `epochs`, and none will
        // before all have arrived at the next epoch.
        if (epoch == 0)
            ops[count++] = (wm_word_op_t){
                .word = &barrier->of[barrier->rank].slot->epochs,
                .value = 0,
            };
    }
    return wm_word_batch(device, stream, ops, count, err);
}

int
wm_barrier_enqueue_epoch(const wm_barrier_t *barrier, int device,
                         CUstream stream, uint32_t number, wm_error_t *err)
{
    wm_word_op_t ops[WM_BARRIER_RANKS];
    int count = add_epoch(barrier, offsetof(wm_barrier_slot_t, epochs), number,
                          ops);
    return wm_word_batch(device, stream, ops, count, err);
}

// Added to the promised value: beyond the value of any stream, and of a rank
// that has left.
#define POISON (1u << 29)
#define ABORTED (1u << 16) // plus the number of the dead rank

// Other ranks write our round word as we write theirs, so no rank knows where
// its stream is. We write the epochs in turn; a stream passes at two of the
// three.
bool
wm_barrier_poison(const wm_barrier_t *barrier, int rank)
{
    static _Atomic unsigned turn;
    uint32_t epoch = ROUND_EPOCH(atomic_fetch_add(&turn, 1) % ROUND_EPOCHS);
    wm_barrier_slot_t *own = barrier->of[barrier->rank].slot;
    atomic_store(&own->abort_flag, ABORTED | (uint32_t)rank);
    if (rank < barrier->size)
        atomic_store(&barrier->of[rank].slot->streams,
                     atomic_load(&promised[barrier_index_of(barrier)])
                         - barrier->of[barrier->rank].streams
                         + barrier->of[rank].streams + POISON);
    for (int i = 0; i < barrier->size; ++i) {
        if (i == barrier->rank)
            continue;
        atomic_store(&barrier->of[i].slot->epochs, POISON);
        atomic_store(&barrier->of[i].slot->round, epoch);
    }
    return atomic_exchange(&own->epochs, POISON) != POISON;
}

int
wm_barrier_dead(const wm_barrier_t *barrier)
{
    for (int i = 0; i < barrier->size; ++i) {
        uint32_t flag = atomic_load(&barrier->of[i].slot->abort_flag);
        if (flag != 0)
            return (int)(flag & (ABORTED - 1));
    }
    return -1;
}

wm_word_op_t
wm_barrier_abort_word(const wm_barrier_t *barrier)
{
    return (wm_word_op_t){
        .waits = true,
        .word = &barrier->of[barrier->rank].slot->abort_flag,
    };
}

wm_signature_area_t *
wm_barrier_signatures(const wm_barrier_t *barrier, int rank)
{
    return &barrier->of[rank].area->signatures;
}
