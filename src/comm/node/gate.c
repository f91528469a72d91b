// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/gate.h"

#include <stdlib.h>

#include "comm/node/node.h"
#include "cuda/word.h"

static int idle[WM_GATES]; // that nobody uses
static int idle_count = -1;
static wm_gates_t *closed; // by us, not by all
// Where the streams of each of ours will be when they have run.
static _Atomic uint32_t promised[WM_GATES];

struct wm_gates {
    struct wm_gates *next; // of the closed ones
    int rank, size;
    int room;
    uint32_t steps;  // before this meeting
    uint32_t before; // what this rank had reached then
    uint32_t calls;  // that block, so far
    int come;        // ranks before this one have reached `step`
    int step;
    struct {
        wm_gate_t *gate;
        wm_gate_hall_t *hall;
        _Atomic uint32_t *reached; // steps, of all meetings
        uint32_t base;    // what it had reached before the first meeting
        uint32_t calls;   // likewise, to how many that block it had come
        uint32_t streams; // likewise, of streams
    } of[];
};

// An entry of the book: the call, and how many ranks have asked, and have been
// told what comes of it.
#define CALL(entry) ((uint32_t)((entry) >> 32))
#define ASKED ((uint64_t)1)
#define TOLD ((uint64_t)1 << 8)
#define MPIS ((uint64_t)1 << 16)
#define COUNT(entry, of) ((int)((entry) / (of)) & 0xff)

static _Atomic uint32_t *
reached_of(const wm_peer_t *peer, int index, int room)
{
    return room == 0 ? &peer->segment->reached[index]
                     : &wm_hall_pointer(peer, index)->aside[room - 1];
}

// Of ours.
static int
index_of(const wm_gates_t *gates)
{
    return (int)(gates->of[gates->rank].gate - wm_node_self()->segment->gates);
}

// Those that all have closed are idle.
static void
look_at_closed(void)
{
    if (idle_count < 0)
        for (idle_count = 0; idle_count < WM_GATES; ++idle_count)
            idle[idle_count] = WM_GATES - 1 - idle_count;
    for (wm_gates_t **link = &closed, *gates; (gates = *link) != NULL;) {
        if (wm_gates_have_come(gates) == 0
            || !wm_gates_have_reached(gates, 0)) {
            link = &gates->next;
            continue;
        }
        *link = gates->next;
        wm_gate_release(index_of(gates));
        free(gates);
    }
}

wm_gate_place_t
wm_gate_acquire(void)
{
    wm_gate_place_t place = {.index = -1};
    look_at_closed();
    // Those that have been used have memory, and are taken first.
    if (idle_count == 0 || !wm_hall_open(idle[idle_count - 1]))
        return place;
    place.index = idle[--idle_count];
    const wm_peer_t *self = wm_node_self();
    wm_gate_hall_t *hall = wm_hall_pointer(self, place.index);
    for (int i = 0; i < WM_GATE_BOOK; ++i)
        atomic_store(&hall->book[i], 0);
    atomic_store(&self->segment->gates[place.index].gone, 0);
    place.calls = atomic_load(&hall->blocking.count);
    for (int room = 0; room < WM_GATE_ROOMS; ++room)
        place.reached[room] = atomic_load(reached_of(self, place.index, room));
    return place;
}

void
wm_gate_release(int index)
{
    idle[idle_count++] = index;
}

int
wm_gate_left(void)
{
    look_at_closed();
    return idle_count;
}

void
wm_gates_close(wm_gates_t *gates)
{
    wm_gates_come(gates, false); // it waits for nobody
    (void)wm_gates_begin(gates);
    wm_gates_reach(gates, 0);
    gates->next = closed;
    closed = gates;
}

wm_gates_t *
wm_gates_new(int rank, int size, int room)
{
    wm_gates_t *gates = calloc(1, sizeof *gates
                                      + (size_t)size * sizeof gates->of[0]);
    if (gates != NULL) {
        gates->rank = rank;
        gates->size = size;
        gates->room = room;
    }
    return gates;
}

void
wm_gates_set(wm_gates_t *gates, int rank, const wm_peer_t *peer,
             const wm_gate_place_t *place)
{
    gates->of[rank].gate = &peer->segment->gates[place->index];
    gates->of[rank].hall = wm_hall_pointer(peer, place->index);
    gates->of[rank].reached = reached_of(peer, place->index, gates->room);
    gates->of[rank].base = place->reached[gates->room];
    gates->of[rank].calls = place->calls;
}

int
wm_gates_size(const wm_gates_t *gates)
{
    return gates->size;
}

int
wm_gates_rank(const wm_gates_t *gates)
{
    return gates->rank;
}

static size_t
turn(const wm_gates_t *gates)
{
    return gates->steps / WM_GATE_STEPS % 2;
}

void *
wm_gates_begin(wm_gates_t *gates)
{
    gates->before = atomic_load(gates->of[gates->rank].reached);
    gates->steps += WM_GATE_STEPS;
    gates->come = gates->step = 0;
    return (void *)wm_gates_said(gates, gates->rank);
}

void
wm_gates_abandon(wm_gates_t *gates)
{
    atomic_store(gates->of[gates->rank].reached, gates->before);
    gates->steps -= WM_GATE_STEPS;
}

void
wm_gates_reach(wm_gates_t *gates, int step)
{
    atomic_store_explicit(gates->of[gates->rank].reached,
                          gates->of[gates->rank].base + gates->steps
                              + (uint32_t)step,
                          memory_order_release);
}

// How far a rank is from the beginning of this meeting.
static int32_t
steps_of(const wm_gates_t *gates, int rank)
{
    uint32_t reached = atomic_load_explicit(gates->of[rank].reached,
                                            memory_order_acquire);
    return (int32_t)(reached - gates->of[rank].base - gates->steps);
}

bool
wm_gates_have_reached(wm_gates_t *gates, int step)
{
    if (step != gates->step) {
        gates->step = step;
        gates->come = 0;
    }
    while (gates->come < gates->size && steps_of(gates, gates->come) >= step)
        ++gates->come;
    return gates->come == gates->size;
}

bool
wm_gates_any_has_reached(const wm_gates_t *gates, int step)
{
    int rank = 0;
    while (rank < gates->size && steps_of(gates, rank) < step)
        ++rank;
    return rank < gates->size;
}

const void *
wm_gates_said(const wm_gates_t *gates, int rank)
{
    return gates->of[rank].hall->said[gates->room][turn(gates)];
}

void
wm_gates_come(wm_gates_t *gates, bool capable)
{
    wm_gate_blocking_t *own = &gates->of[gates->rank].hall->blocking;
    uint32_t call = gates->of[gates->rank].calls + ++gates->calls;
    if (capable) {
        atomic_store_explicit(&own->asked[1], atomic_load(&own->asked[0]),
                              memory_order_release);
        atomic_store_explicit(&own->asked[0], call, memory_order_release);
    }
    atomic_store_explicit(&own->count, call, memory_order_release);
}

// A rank that has asked for a call does not leave the call before this rank
// has come to it. So it has asked for one later call at most while this rank
// is in this one, and of the last two that it has asked for one is this.
static bool
has_asked(const wm_gate_blocking_t *of, uint32_t call)
{
    return atomic_load_explicit(&of->asked[0], memory_order_acquire) == call
           || atomic_load_explicit(&of->asked[1], memory_order_acquire)
                  == call;
}

int
wm_gates_have_come(const wm_gates_t *gates)
{
    int all_ask = 1;
    for (int rank = 0; rank < gates->size; ++rank) {
        const wm_gate_blocking_t *of = &gates->of[rank].hall->blocking;
        uint32_t call = gates->of[rank].calls + gates->calls;
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
entry_of(const wm_gates_t *gates, uint32_t call)
{
    return &gates->of[0].hall->book[call % WM_GATE_BOOK];
}

bool
wm_gates_ask(const wm_gates_t *gates, uint32_t call, bool capable)
{
    _Atomic uint64_t *entry = entry_of(gates, call);
    uint64_t now = atomic_load(entry), next;
    do {
        // Not of any other that has been told: the one whose turn it is may
        // not have come yet.
        if (CALL(now) != call
            && (now == 0 ? call > WM_GATE_BOOK
                         : CALL(now) != call - WM_GATE_BOOK
                               || COUNT(now, TOLD) < gates->size))
            return false;
        next = CALL(now) == call ? now : (uint64_t)call << 32;
        next += capable ? ASKED : ASKED + TOLD;
        next |= capable ? 0 : MPIS;
    } while (!atomic_compare_exchange_weak(entry, &now, next));
    return true;
}

wm_book_t
wm_gates_who(const wm_gates_t *gates, uint32_t call)
{
    _Atomic uint64_t *entry = entry_of(gates, call);
    uint64_t now = atomic_load(entry);
    if ((now & MPIS) == 0 && COUNT(now, ASKED) < gates->size)
        return WM_BOOK_OPEN;
    atomic_fetch_add(entry, TOLD);
    return (now & MPIS) != 0 ? WM_BOOK_MPI : WM_BOOK_GPUS;
}

void
wm_gates_withdraw(const wm_gates_t *gates, uint32_t call)
{
    _Atomic uint64_t *entry = entry_of(gates, call);
    uint64_t now = atomic_load(entry);
    while (CALL(now) == call && (now & MPIS) == 0
           && COUNT(now, ASKED) < gates->size
           && !atomic_compare_exchange_weak(entry, &now, now | MPIS))
        ;
}

uint32_t
wm_gates_streams_now(const wm_gates_t *gates)
{
    return atomic_load(&gates->of[gates->rank].gate->streams);
}

uint32_t
wm_gates_streams_at(const wm_gates_t *gates)
{
    return wm_gates_streams_now(gates) - gates->of[gates->rank].streams;
}

void
wm_gates_set_streams(wm_gates_t *gates, int rank, uint32_t now)
{
    gates->of[rank].streams = now;
}

void
wm_gates_promise(const wm_gates_t *gates, uint32_t value)
{
    atomic_store(&promised[index_of(gates)],
                 gates->of[gates->rank].streams + value);
}

// Of the gate of that number.
static bool
has_kept(int index)
{
    return wm_word_reached(&wm_node_self()->segment->gates[index].streams,
                           atomic_load(&promised[index]));
}

bool
wm_gates_have_kept(const wm_gates_t *gates)
{
    return has_kept(index_of(gates));
}

bool
wm_gates_any_stream_waits(void)
{
    int index = wm_node_self() == NULL ? WM_GATES : 0;
    while (index < WM_GATES && has_kept(index))
        ++index;
    return index < WM_GATES;
}

void
wm_gates_leave(const wm_gates_t *gates, uint32_t value)
{
    atomic_store(&gates->of[gates->rank].gate->streams,
                 gates->of[gates->rank].streams + value);
}

void
wm_gates_leave_from(const wm_gates_t *gates, uint32_t from, uint32_t value)
{
    uint32_t base = gates->of[gates->rank].streams, is = base + from;
    (void)atomic_compare_exchange_strong(&gates->of[gates->rank].gate->streams,
                                         &is, base + value);
}

int
wm_gates_enqueue_reach(const wm_gates_t *gates, int device, CUstream stream,
                       uint32_t value, wm_error_t *err)
{
    return wm_word_write(device, stream, &gates->of[gates->rank].gate->streams,
                         gates->of[gates->rank].streams + value, err);
}

int
wm_gates_enqueue_await(const wm_gates_t *gates, int rank, int device,
                       CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_wait(device, stream, &gates->of[rank].gate->streams,
                        gates->of[rank].streams + value, err);
}

wm_word_op_t
wm_gates_stream_word(const wm_gates_t *gates, int rank, uint32_t value)
{
    return (wm_word_op_t){
        .waits = rank != gates->rank,
        .word = &gates->of[rank].gate->streams,
        .value = gates->of[rank].streams + value,
    };
}

bool
wm_gates_streams_reached(const wm_gates_t *gates, int rank, uint32_t value)
{
    return wm_word_reached(&gates->of[rank].gate->streams,
                           gates->of[rank].streams + value);
}

// Three places in a round, of which each is reached (modulo 2^32) from itself
// and from the next, and not from the one before it. A rank that waits for
// another to come to a place finds it there or, as nobody passes a place
// before all have come to it, at the next, or still at the one before: so
// three are enough, and after the third it begins anew.
#define PLACES 3
#define PLACE(number) ((uint32_t)(number)*0x55555555u)

_Static_assert(PLACES *WM_GATE_RANKS + 1 <= WM_WORD_OPS, "at once");

// All come to a value of a word.
static int
add_meet(const wm_gates_t *gates, size_t word, uint32_t value,
         wm_word_op_t *ops)
{
    int count = 1;
    for (int rank = 0; rank < gates->size; ++rank) {
        bool waits = rank != gates->rank;
        ops[waits ? count++ : 0] = (wm_word_op_t){
            .waits = waits,
            .word = (_Atomic uint32_t *)((char *)gates->of[rank].gate + word),
            .value = value,
        };
    }
    return count;
}

void
wm_gates_begin_rounds(const wm_gates_t *gates)
{
    wm_gate_t *gate = gates->of[gates->rank].gate;
    atomic_store(&gate->round, PLACE(PLACES - 1));
    atomic_store(&gate->meets, 0);
}

int
wm_gates_enqueue_round(const wm_gates_t *gates, int device, CUstream stream,
                       wm_error_t *err)
{
    wm_word_op_t ops[WM_WORD_OPS];
    int count = 0;
    for (int place = 0; place < PLACES; ++place) {
        count += add_meet(gates, offsetof(wm_gate_t, round), PLACE(place),
                          ops + count);
        // All have come, so nobody waits for it, and nobody will before all
        // have come to the next place.
        if (place == 0)
            ops[count++] = (wm_word_op_t){
                .word = &gates->of[gates->rank].gate->meets,
                .value = 0,
            };
    }
    return wm_word_batch(device, stream, ops, count, err);
}

int
wm_gates_enqueue_meet(const wm_gates_t *gates, int device, CUstream stream,
                      uint32_t number, wm_error_t *err)
{
    wm_word_op_t ops[WM_GATE_RANKS];
    int count = add_meet(gates, offsetof(wm_gate_t, meets), number, ops);
    return wm_word_batch(device, stream, ops, count, err);
}

// Further than any stream comes, and than one whose rank has left.
#define DEAD (1u << 29)
#define GONE (1u << 16) // and who has died

// Others write our word of rounds as we write theirs, so nobody knows where
// its stream is: each value in turn, of which it waits for two.
bool
wm_gates_bury(const wm_gates_t *gates, int rank)
{
    static _Atomic unsigned turn;
    uint32_t place = PLACE(atomic_fetch_add(&turn, 1) % PLACES);
    wm_gate_t *own = gates->of[gates->rank].gate;
    atomic_store(&own->gone, GONE | (uint32_t)rank);
    if (rank < gates->size)
        atomic_store(&gates->of[rank].gate->streams,
                     atomic_load(&promised[index_of(gates)])
                         - gates->of[gates->rank].streams
                         + gates->of[rank].streams + DEAD);
    for (int i = 0; i < gates->size; ++i) {
        if (i == gates->rank)
            continue;
        atomic_store(&gates->of[i].gate->meets, DEAD);
        atomic_store(&gates->of[i].gate->round, place);
    }
    return atomic_exchange(&own->meets, DEAD) != DEAD;
}

int
wm_gates_dead(const wm_gates_t *gates)
{
    for (int i = 0; i < gates->size; ++i) {
        uint32_t gone = atomic_load(&gates->of[i].gate->gone);
        if (gone != 0)
            return (int)(gone & (GONE - 1));
    }
    return -1;
}

wm_word_op_t
wm_gates_gone_word(const wm_gates_t *gates)
{
    return (wm_word_op_t){
        .waits = true,
        .word = &gates->of[gates->rank].gate->gone,
    };
}

wm_gate_told_t *
wm_gates_told(const wm_gates_t *gates, int rank)
{
    return &gates->of[rank].hall->told;
}
