// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/stream_words.h"

#include <string.h>

#include "comm/node/barrier_ranks.h"
#include "kernels/ll.h"

// The values that our words of streams will have when the streams have run.
static _Atomic uint32_t promised[WM_BARRIER_ROWS];

uint32_t
wm_stream_word_now(const wm_barrier_t *barrier)
{
    return atomic_load(&barrier->of[barrier->rank].slot->streams);
}

uint32_t
wm_stream_word_at(const wm_barrier_t *barrier)
{
    return wm_stream_word_now(barrier) - barrier->of[barrier->rank].streams;
}

void
wm_stream_word_set_base(wm_barrier_t *barrier, int rank, uint32_t now)
{
    barrier->of[rank].streams = now;
}

void
wm_stream_word_promise(const wm_barrier_t *barrier, uint32_t value)
{
    atomic_store(&promised[barrier_index_of(barrier)],
                 barrier->of[barrier->rank].streams + value);
}

// Returns true if the word of our slot has reached its promised value.
static bool
has_kept(int index)
{
    return wm_word_reached(
        &wm_node_self()->segment->barrier_rows[index].streams,
        atomic_load(&promised[index]));
}

bool
wm_stream_word_is_kept(const wm_barrier_t *barrier)
{
    return has_kept(barrier_index_of(barrier));
}

bool
wm_stream_words_any_waits(void)
{
    int index = wm_node_self() == NULL ? WM_BARRIER_ROWS : 0;
    while (index < WM_BARRIER_ROWS && has_kept(index))
        ++index;
    return index < WM_BARRIER_ROWS;
}

void
wm_stream_word_leave(const wm_barrier_t *barrier, uint32_t value)
{
    atomic_store(&barrier->of[barrier->rank].slot->streams,
                 barrier->of[barrier->rank].streams + value);
}

void
wm_stream_word_leave_from(const wm_barrier_t *barrier, uint32_t from,
                          uint32_t value)
{
    uint32_t base = barrier->of[barrier->rank].streams, is = base + from;
    (void)atomic_compare_exchange_strong(
        &barrier->of[barrier->rank].slot->streams, &is, base + value);
}

int
wm_stream_word_enqueue_arrive(const wm_barrier_t *barrier, int device,
                              CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_write(device, stream,
                         &barrier->of[barrier->rank].slot->streams,
                         barrier->of[barrier->rank].streams + value, err);
}

int
wm_stream_word_enqueue_wait(const wm_barrier_t *barrier, int rank, int device,
                            CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_wait(device, stream, &barrier->of[rank].slot->streams,
                        barrier->of[rank].streams + value, err);
}

wm_word_op_t
wm_stream_word_op(const wm_barrier_t *barrier, int rank, uint32_t value)
{
    return (wm_word_op_t){
        .waits = rank != barrier->rank,
        .word = &barrier->of[rank].slot->streams,
        .value = barrier->of[rank].streams + value,
    };
}

bool
wm_stream_word_arrived(const wm_barrier_t *barrier, int rank, uint32_t value)
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

// The value that a round writes into the word `awaited`: waits before it have
// ended.
#define AWAITED_ROUND ((1u << WM_AWAITED_BITS) - 1)

_Static_assert(ROUND_EPOCHS *WM_BARRIER_RANKS + 3 <= WM_WORD_OPS, "at once");
_Static_assert(WM_BARRIER_RANKS < AWAITED_ROUND, "so is no rank's");

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
wm_graph_words_begin(const wm_barrier_t *barrier)
{
    wm_barrier_row_t *slot = barrier->of[barrier->rank].slot;
    atomic_store(&slot->round, ROUND_EPOCH(ROUND_EPOCHS - 1));
    atomic_store(&slot->epochs, 0);
    atomic_store(&slot->awaited, 0);
    atomic_store(&slot->refused, 0);
}

void
wm_graph_words_refuse(const wm_barrier_t *barrier, uint32_t number,
                      const char *text)
{
    wm_barrier_row_t *slot = barrier->of[barrier->rank].slot;
    uint64_t refused = atomic_load(&slot->refused);
    if (refused >> 32 != number)
        refused = (uint64_t)number << 32;
    wm_error_cut(text, sizeof slot->refusal, slot->refusal);
    atomic_store(&slot->refused, refused + 1);
}

void
wm_graph_words_capture(const wm_barrier_t *barrier, uint32_t number)
{
    wm_barrier_row_t *slot = barrier->of[barrier->rank].slot;
    if (atomic_load(&slot->refused) >> 32 != number)
        atomic_store(&slot->refused, 0);
}

bool
wm_graph_words_may_lack(const wm_barrier_t *barrier, int rank,
                        uint32_t captures)
{
    uint64_t refused = atomic_load(&barrier->of[rank].slot->refused);
    uint32_t least = (uint32_t)(refused >> 32);
    if ((int32_t)(captures - least) < 0)
        least = captures;
    return refused != 0
           && wm_word_reached(&barrier->of[barrier->rank].slot->awaited_in,
                              least);
}

bool
wm_graph_words_find_refusal(const wm_barrier_t *barrier, int rank,
                            char text[WM_GRAPH_REFUSAL_BYTES])
{
    const wm_barrier_row_t *its = barrier->of[rank].slot,
                           *own = barrier->of[barrier->rank].slot;
    uint64_t refused = atomic_load(&its->refused),
             alike = atomic_load(&own->refused);
    if (refused == 0
        || (its != own && refused >> 32 == alike >> 32 && refused <= alike))
        return false;
    memcpy(text, its->refusal, WM_GRAPH_REFUSAL_BYTES);
    text[WM_GRAPH_REFUSAL_BYTES - 1] = 0;
    return true;
}

int
wm_graph_words_enqueue_round(const wm_barrier_t *barrier, int device,
                             CUstream stream, uint32_t capture,
                             wm_error_t *err)
{
    wm_word_op_t ops[WM_WORD_OPS];
    int count = 0;
    ops[count++] = (wm_word_op_t){
        .word = &barrier->of[barrier->rank].slot->awaited_in,
        .value = capture,
    };
    for (int epoch = 0; epoch < ROUND_EPOCHS; ++epoch) {
        count += add_epoch(barrier, offsetof(wm_barrier_row_t, round),
                           ROUND_EPOCH(epoch), ops + count);
        // All have arrived, so no rank waits for `epochs`, and none will
        // before all have arrived at the next epoch.
        if (epoch == 0)
            ops[count++] = (wm_word_op_t){
                .word = &barrier->of[barrier->rank].slot->epochs,
                .value = 0,
            };
    }
    ops[count++] = (wm_word_op_t){
        .word = &barrier->of[barrier->rank].slot->awaited,
        .value = AWAITED_ROUND,
    };
    return wm_word_batch(device, stream, ops, count, err);
}

// Enqueues the operations of an epoch from `first` to `last`: the arrival is
// the first one.
static int
enqueue_epoch(const wm_barrier_t *barrier, int device, CUstream stream,
              uint32_t number, int first, int last, wm_error_t *err)
{
    wm_word_op_t ops[WM_BARRIER_RANKS];
    (void)add_epoch(barrier, offsetof(wm_barrier_row_t, epochs), number, ops);
    return wm_word_batch(device, stream, ops + first, last - first, err);
}

int
wm_graph_words_enqueue_arrive(const wm_barrier_t *barrier, int device,
                              CUstream stream, uint32_t number,
                              wm_error_t *err)
{
    return enqueue_epoch(barrier, device, stream, number, 0, 1, err);
}

int
wm_graph_words_enqueue_wait(const wm_barrier_t *barrier, int device,
                            CUstream stream, uint32_t number, wm_error_t *err)
{
    return enqueue_epoch(barrier, device, stream, number, 1, barrier->size,
                         err);
}

int
wm_graph_words_enqueue_epoch(const wm_barrier_t *barrier, int device,
                             CUstream stream, uint32_t number, wm_error_t *err)
{
    return enqueue_epoch(barrier, device, stream, number, 0, barrier->size,
                         err);
}

// Added to the promised value: beyond the value of any stream, and of a rank
// that has left.
#define POISON (1u << 29)
#define ABORTED (1u << 16) // plus the number of the dead rank

// Other ranks write our round word as we write theirs, so no rank knows where
// its stream is. We write the epochs in turn; a stream passes at two of the
// three.
bool
wm_stream_words_poison(const wm_barrier_t *barrier, int rank)
{
    static _Atomic unsigned turn;
    uint32_t epoch = ROUND_EPOCH(atomic_fetch_add(&turn, 1) % ROUND_EPOCHS);
    wm_barrier_row_t *own = barrier->of[barrier->rank].slot;
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
wm_stream_words_dead(const wm_barrier_t *barrier)
{
    for (int i = 0; i < barrier->size; ++i) {
        uint32_t flag = atomic_load(&barrier->of[i].slot->abort_flag);
        if (flag != 0)
            return (int)(flag & (ABORTED - 1));
    }
    return -1;
}

// Returns true if a stream waits at an epoch until a rank's word is as ours.
// Nobody waits at the last step of a turn.
static bool
epoch_is_awaited(wm_barrier_row_t *own, wm_barrier_row_t *its)
{
    uint32_t round = atomic_load(&own->round),
             epochs = atomic_load(&own->epochs);
    return !wm_word_reached(&its->round, round)
           || (epochs % 0x10000 != 0xffff && atomic_load(&its->round) == round
               && !wm_word_reached(&its->epochs, epochs));
}

int
wm_graph_words_awaited(const wm_barrier_t *barrier, uint32_t *looks,
                       bool *begun)
{
    wm_barrier_row_t *own = barrier->of[barrier->rank].slot;
    uint32_t awaited = atomic_exchange(&own->awaited, 0);
    *begun = awaited == AWAITED_ROUND;
    *looks = awaited >> WM_AWAITED_BITS;
    if (awaited != 0 && !*begun)
        return (int)(awaited & AWAITED_ROUND) - 1;
    *looks = UINT32_MAX;
    for (int rank = 0; rank < barrier->size; ++rank)
        if (epoch_is_awaited(own, barrier->of[rank].slot))
            return rank;
    return -1;
}

int
wm_graph_words_enqueue_abort(const wm_barrier_t *barrier, int device,
                             CUstream stream, wm_error_t *err)
{
    uint32_t differ = (uint32_t)WM_WORDS_DIFFER(barrier->size);
    return wm_word_write(device, stream,
                         &barrier->of[barrier->rank].slot->abort_flag,
                         ABORTED | differ, err);
}

wm_word_op_t
wm_stream_words_abort_op(const wm_barrier_t *barrier)
{
    return (wm_word_op_t){
        .waits = true,
        .word = &barrier->of[barrier->rank].slot->abort_flag,
    };
}
