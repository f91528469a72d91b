// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a communicator on one host meet: each has a gate in its
// own segment, in which it says something, and how far it is, and reads those
// of the others. Meetings are numbered; of one it is told what was said until
// all have begun the next. A gate has rooms to meet in, for calls that block
// and for others, which go on beside them and each other. Nobody writes
// another's gate, but the book of rank 0's. Engine lock held for wm_gate_…;
// wm_gates_… are of one thread at a time.
#ifndef WM_COMM_NODE_GATE_H
#define WM_COMM_NODE_GATE_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/node/hall.h"
#include "cuda/word.h"

// Of collectives on streams: how far the streams are (comm/coll/slab.c).
typedef struct {
    _Alignas(64) _Atomic uint32_t streams;
    // Of those in graphs, which are replayed: where in a round of three the
    // stream is, in which all come together before a graph's first call, and
    // in how many meets it has been since.
    _Atomic uint32_t round, meets;
    _Atomic uint32_t gone; // not 0: it has buried another
} wm_gate_t;

// What a rank tells of the gate that it has for a communicator.
typedef struct {
    int32_t index;                   // in its segment; -1: none
    uint32_t calls;                  // that block, to which it has come
    uint32_t reached[WM_GATE_ROOMS]; // so far
} wm_gate_place_t;

typedef struct wm_gates wm_gates_t; // of a communicator: all ranks'
struct wm_peer;                     // comm/node/node.h

// One of ours that nobody uses. It is released where no others were found.
wm_gate_place_t
wm_gate_acquire(void);
void
wm_gate_release(int index);
// How many nobody uses.
int
wm_gate_left(void);

// A room of the gates of so many ranks, `rank` being ours; NULL where memory
// is exhausted. Room 0 ends by wm_gates_close, others by free(): ours is used
// again when all have closed it, as one that is slow may yet read it.
wm_gates_t *
wm_gates_new(int rank, int size, int room);
void
wm_gates_close(wm_gates_t *gates);

void
wm_gates_set(wm_gates_t *gates, int rank, const struct wm_peer *peer,
             const wm_gate_place_t *place);

// Our rank, and of how many.
int
wm_gates_rank(const wm_gates_t *gates);
int
wm_gates_size(const wm_gates_t *gates);

// Begins the next meeting: where to say what is to be said. We are so far: 0,
// what we have said can be read.
void *
wm_gates_begin(wm_gates_t *gates);
// Ends a meeting to which not all come: the next begins in its place.
void
wm_gates_abandon(wm_gates_t *gates);
void
wm_gates_reach(wm_gates_t *gates, int step);

// Whether all are; whether any is, or has begun another meeting.
bool
wm_gates_have_reached(wm_gates_t *gates, int step);
bool
wm_gates_any_has_reached(const wm_gates_t *gates, int step);

// What a rank has said.
const void *
wm_gates_said(const wm_gates_t *gates, int rank);

// By each rank once for each blocking call, and before each meeting in room 0,
// in their order: whether GPUs can do it for this rank. Who has host memory
// alone says no, and does not wait.
void
wm_gates_come(wm_gates_t *gates, bool capable);

// Returns 0 until all ranks have come to the call that this rank has last come
// to; then 1 if all have asked for GPUs, -1 if a rank has not.
int
wm_gates_have_come(const wm_gates_t *gates);

// Who does a nonblocking call: GPUs where all ranks have asked.
typedef enum { WM_BOOK_OPEN, WM_BOOK_GPUS, WM_BOOK_MPI } wm_book_t;

// By each rank once for each call, in their order, numbered from 1 on: whether
// GPUs can do it for this rank; else MPI does, and nothing is to be asked.
// False where it must be tried again, as this rank is so far ahead of others
// that there is no entry.
WM_MUST_CHECK bool
wm_gates_ask(const wm_gates_t *gates, uint32_t call, bool capable);

// What is known by now; no more once it was told, as another call may take the
// place.
wm_book_t
wm_gates_who(const wm_gates_t *gates, uint32_t call);

// MPI is to do it, unless all have asked for GPUs by now.
void
wm_gates_withdraw(const wm_gates_t *gates, uint32_t call);
// Of what streams do. Where ours is by now, at which all begin to count, and
// how far from there.
uint32_t
wm_gates_streams_now(const wm_gates_t *gates);
uint32_t
wm_gates_streams_at(const wm_gates_t *gates);
void
wm_gates_set_streams(wm_gates_t *gates, int rank, uint32_t now);
// Streams are about to be given what ends with ours being so far; whether it
// is; whether one of this process, of any communicator, is not: it may wait
// for what the program is about to do.
void
wm_gates_promise(const wm_gates_t *gates, uint32_t value);
bool
wm_gates_have_kept(const wm_gates_t *gates);
bool
wm_gates_any_stream_waits(void);

// Ours is so far now, as no stream will come there; or if it is where it was.
void
wm_gates_leave(const wm_gates_t *gates, uint32_t value);
void
wm_gates_leave_from(const wm_gates_t *gates, uint32_t from, uint32_t value);

// A rank has died (the size: all is revoked): what it would have written is
// written, so that nothing here waits for it, nor, in graphs, for any other.
// Again and again, as others may still write; true where a graph has met
// since.
bool
wm_gates_bury(const wm_gates_t *gates, int rank);

// Whom a rank has buried, as all see whom that let go; -1: nobody.
int
wm_gates_dead(const wm_gates_t *gates);

// For kernels in graphs: far on once one has died.
wm_word_op_t
wm_gates_gone_word(const wm_gates_t *gates);

// The stream of ours will have come so far; it waits until a rank's has;
// whether one's has (modulo 2^32).
WM_MUST_CHECK int
wm_gates_enqueue_reach(const wm_gates_t *gates, int device, CUstream stream,
                       uint32_t value, wm_error_t *err);
WM_MUST_CHECK int
wm_gates_enqueue_await(const wm_gates_t *gates, int rank, int device,
                       CUstream stream, uint32_t value, wm_error_t *err);

// The word that they write, or wait for, and the value: for a kernel that
// does.
wm_word_op_t
wm_gates_stream_word(const wm_gates_t *gates, int rank, uint32_t value);
bool
wm_gates_streams_reached(const wm_gates_t *gates, int rank, uint32_t value);

// Of graphs, whose nodes write the same values in each replay. Where ours
// begins, before any stream comes to it; known to all before they go on.
void
wm_gates_begin_rounds(const wm_gates_t *gates);

// The streams of all come together, as often as they like, and count their
// meets from 0 on; they meet, and each has met before (`number`, from 1 on).
// Of one rank the streams must do so in the same order as those of all others.
WM_MUST_CHECK int
wm_gates_enqueue_round(const wm_gates_t *gates, int device, CUstream stream,
                       wm_error_t *err);
WM_MUST_CHECK int
wm_gates_enqueue_meet(const wm_gates_t *gates, int device, CUstream stream,
                      uint32_t number, wm_error_t *err);

// The record of a rank about the calls that its streams were given.
wm_gate_told_t *
wm_gates_told(const wm_gates_t *gates, int rank);

#endif
