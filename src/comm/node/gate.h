// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a communicator on one host meet: each has a gate in its
// own segment, in which it says something, and how far it is, and reads those
// of the others. Nobody writes another's. Meetings are numbered; of one it is
// told what was said until all have begun the next. Engine lock held for
// wm_gate_…; wm_gates_… are of the thread that makes the collective call.
#ifndef WM_COMM_NODE_GATE_H
#define WM_COMM_NODE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/device.h"

#define WM_GATES 64      // a process
#define WM_GATE_RANKS 64 // that meet at most
#define WM_GATE_BYTES 2560
#define WM_GATE_STEPS 8 // of one meeting, at most

typedef struct {
    _Alignas(64) _Atomic uint32_t reached;    // steps, of all meetings
    _Alignas(64) char said[2][WM_GATE_BYTES]; // of this meeting, of the last
    // Of collectives on streams: how far the streams are, and what calls they
    // were given (comm/coll/slab.c).
    _Alignas(64) _Atomic uint32_t streams;
    _Atomic uint64_t told;
} wm_gate_t;

// What a rank tells of the gate that it has for a communicator.
typedef struct {
    int32_t index;    // in its segment; -1: none
    uint32_t reached; // so far
} wm_gate_place_t;

typedef struct wm_gates wm_gates_t; // of a communicator: all ranks'

// One of ours that nobody uses, the one that was given back first.
wm_gate_place_t
wm_gate_acquire(void);

void
wm_gate_release(int index);

// Room for the gates of so many ranks, `rank` being ours; NULL where memory is
// exhausted. Freed by free(), once its gate has been released.
wm_gates_t *
wm_gates_new(int rank, int size);

void
wm_gates_set(wm_gates_t *gates, int rank, wm_gate_t *gate,
             const wm_gate_place_t *place);

// The index of ours.
int
wm_gates_index(const wm_gates_t *gates);

// Begins the next meeting: where to say what is to be said.
void *
wm_gates_begin(wm_gates_t *gates);

// We are so far: 0, what we have said can be read.
void
wm_gates_reach(wm_gates_t *gates, int step);

// Whether all are.
bool
wm_gates_have_reached(wm_gates_t *gates, int step);

// What a rank has said.
const void *
wm_gates_said(const wm_gates_t *gates, int rank);

// Of what streams do. Where ours is by now, at which all begin to count.
uint32_t
wm_gates_streams_now(const wm_gates_t *gates);

void
wm_gates_set_streams(wm_gates_t *gates, int rank, uint32_t now);

// The stream of ours will have come so far; it waits until a rank's has;
// whether one's has (modulo 2^32).
WM_MUST_CHECK int
wm_gates_enqueue_reach(const wm_gates_t *gates, int device, CUstream stream,
                       uint32_t value, wm_error_t *err);

WM_MUST_CHECK int
wm_gates_enqueue_await(const wm_gates_t *gates, int rank, int device,
                       CUstream stream, uint32_t value, wm_error_t *err);

bool
wm_gates_streams_reached(const wm_gates_t *gates, int rank, uint32_t value);

// What we tell of the calls that streams were given, and a rank has told.
void
wm_gates_tell(const wm_gates_t *gates, uint64_t told);

uint64_t
wm_gates_told(const wm_gates_t *gates, int rank);

#endif
