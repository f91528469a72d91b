// SPDX-License-Identifier: BSD-3-Clause
// The barrier of a communicator's ranks on one host. Each rank publishes data
// and its steps in a slot in its own segment, and reads the slots of the
// others. Epochs are numbered, and have steps; their data can be read until
// all ranks have begun the next epoch. A slot has several banks: one for
// blocking calls, others for nonblocking calls, which run concurrently. The
// slot has two more parts: stream words (stream_words.h) and the decision log
// (decision_log.h). Engine lock held for wm_barrier_row…; one thread at a
// time calls the others.
#ifndef WM_COMM_NODE_BARRIER_H
#define WM_COMM_NODE_BARRIER_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/node/exchange_area.h"
#include "cuda/word.h"

#define WM_GRAPH_REFUSAL_BYTES 160

// Words that streams write: stream_words.h.
typedef struct {
    _Alignas(64) _Atomic uint32_t streams;
    // Words for graphs, which are replayed: the epoch in a round of three, in
    // which all streams arrive before a graph's first call; and the epochs
    // since then.
    _Atomic uint32_t round, epochs;
    _Atomic uint32_t abort_flag; // not 0: this rank knows of a dead rank
    // Kernels of graphs that wait long write for whom, now and then; directly
    // behind the flag (kernels/abort.h).
    _Atomic uint32_t awaited;
    // The number of the capture of the graph that waits so, or that has begun
    // a round. Each rank numbers its captures from 1 on.
    _Atomic uint32_t awaited_in;
    // The calls that this rank has refused in a capture: their number, and in
    // the high 32 bits that of the capture. 0: none, or it has captured
    // another graph since. The error of the last one.
    _Atomic uint64_t refused;
    char refusal[WM_GRAPH_REFUSAL_BYTES];
} wm_barrier_row_t;

// The slot of a rank for a communicator, as other ranks learn it.
typedef struct {
    int32_t index;                      // index in its segment; -1: none
    uint32_t calls;                     // blocking calls that it has entered
    uint32_t arrived[WM_BARRIER_BANKS]; // its arrival words, by bank
} wm_barrier_row_info_t;

typedef struct wm_barrier wm_barrier_t; // slots of all ranks of a communicator
struct wm_peer;                         // comm/node/node.h

// Takes an unused slot of ours. wm_barrier_row_release() gives it back if the
// slots of the others were not found.
wm_barrier_row_info_t
wm_barrier_row_acquire(void);
void
wm_barrier_row_release(int index);
// Returns the number of unused slots.
int
wm_barrier_rows_left(void);

// Returns the barrier of `size` ranks in a bank; NULL: out of memory. That of
// bank 0 ends by wm_barrier_close(), others by free(). Our slot is used again
// when all ranks have closed the barrier, as a slow one may yet read it.
wm_barrier_t *
wm_barrier_new(int rank, int size, int bank);
void
wm_barrier_close(wm_barrier_t *barrier);

void
wm_barrier_set(wm_barrier_t *barrier, int rank, const struct wm_peer *peer,
               const wm_barrier_row_info_t *info);

// Return our rank, and the number of ranks.
int
wm_barrier_rank(const wm_barrier_t *barrier);
int
wm_barrier_size(const wm_barrier_t *barrier);

// Begins the next epoch. Returns the memory for the data that we publish.
void *
wm_barrier_epoch_begin(wm_barrier_t *barrier);
// Withdraws an epoch that not all ranks enter; the next one replaces it.
void
wm_barrier_epoch_abandon(wm_barrier_t *barrier);
// Arrives at a step. From step 0 on the others may read our data.
void
wm_barrier_arrive(wm_barrier_t *barrier, int step);

// Returns true if all ranks have arrived at the step, or beyond; if any rank
// has, or has begun another epoch.
bool
wm_barrier_all_arrived(wm_barrier_t *barrier, int step);
bool
wm_barrier_any_arrived(const wm_barrier_t *barrier, int step);

// Returns the data that a rank has published; borrowed.
const void *
wm_barrier_published(const wm_barrier_t *barrier, int rank);

// Enters a blocking call; called by each rank once for each, in their order,
// before the epoch in bank 0. Writes into this rank's exchange area
// (`blocking`). `takes_part`: the rank takes part in the call's preflight,
// which decides whether GPUs do the call. Else the rank declines: it does not
// wait, and MPI does the call on all ranks.
void
wm_barrier_enter(wm_barrier_t *barrier, bool takes_part);

// Returns 0 until all ranks have entered the call that this rank has last
// entered. Then returns 1 if all ranks take part, -1 if one has declined.
int
wm_barrier_all_entered(const wm_barrier_t *barrier);

// Returns true if a rank has declined the call that this rank has last
// entered, and is in a later one.
bool
wm_barrier_any_passed(const wm_barrier_t *barrier);

// Returns true if a rank has declined the call that this rank has last entered
// or, having declined, is in a later one: MPI does its call.
bool
wm_barrier_has_declined(const wm_barrier_t *barrier, int rank);

// Returns a rank's record of the calls that its streams were given; borrowed.
wm_signature_area_t *
wm_barrier_signatures(const wm_barrier_t *barrier, int rank);

#endif
