// SPDX-License-Identifier: BSD-3-Clause
// The barrier of a communicator's ranks on one host. Each rank has a slot in
// its own segment, in which it publishes data and how far it is, and reads the
// slots of the others. Epochs are numbered, and have steps; the data of an
// epoch can be read until all ranks have begun the next. A slot has several
// banks: one for calls that block, others for nonblocking calls, which run
// concurrently. A rank writes its own slot only, except for the decision log
// of rank 0 and in wm_barrier_poison. Engine lock held for wm_barrier_slot…;
// the others are of one thread at a time.
#ifndef WM_COMM_NODE_BARRIER_H
#define WM_COMM_NODE_BARRIER_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/node/exchange_area.h"
#include "cuda/word.h"

// How far the streams are in their collectives (symm.c).
typedef struct {
    _Alignas(64) _Atomic uint32_t streams;
    // In graphs, which are replayed: the stream's epoch of a round of three,
    // in which all streams arrive before a graph's first call, and the epochs
    // since.
    _Atomic uint32_t round, epochs;
    _Atomic uint32_t abort_flag; // not 0: it knows of a dead rank
} wm_barrier_slot_t;

// The slot that a rank has for a communicator, as the others know it.
typedef struct {
    int32_t index;                      // in its segment; -1: none
    uint32_t calls;                     // blocking ones, which it has entered
    uint32_t arrived[WM_BARRIER_BANKS]; // so far
} wm_barrier_slot_info_t;

typedef struct wm_barrier wm_barrier_t; // of a communicator: all ranks' slots
struct wm_peer;                         // comm/node/node.h

// Takes a slot of ours that nobody uses. It is released where the others'
// slots were not found.
wm_barrier_slot_info_t
wm_barrier_slot_acquire(void);
void
wm_barrier_slot_release(int index);
// Returns how many slots nobody uses.
int
wm_barrier_slots_left(void);

// The barrier of so many ranks in a bank, `rank` being ours; NULL where memory
// is exhausted. Bank 0 ends by wm_barrier_close, others by free(): our slot is
// used again when all ranks have closed the barrier, as a slow one may yet
// read it.
wm_barrier_t *
wm_barrier_new(int rank, int size, int bank);
void
wm_barrier_close(wm_barrier_t *barrier);

void
wm_barrier_set(wm_barrier_t *barrier, int rank, const struct wm_peer *peer,
               const wm_barrier_slot_info_t *info);

// Our rank, and of how many.
int
wm_barrier_rank(const wm_barrier_t *barrier);
int
wm_barrier_size(const wm_barrier_t *barrier);

// Begins the next epoch; returns the memory for the data that we publish.
void *
wm_barrier_epoch_begin(wm_barrier_t *barrier);
// Takes back an epoch that not all ranks enter: the next one replaces it.
void
wm_barrier_epoch_abandon(wm_barrier_t *barrier);
// We arrive at a step. From step 0 on the others may read our data.
void
wm_barrier_arrive(wm_barrier_t *barrier, int step);

// Returns true if all ranks have arrived at the step, or beyond; if any rank
// has, or has begun another epoch.
bool
wm_barrier_all_arrived(wm_barrier_t *barrier, int step);
bool
wm_barrier_any_arrived(const wm_barrier_t *barrier, int step);

// Returns the data that a rank has published.
const void *
wm_barrier_published(const wm_barrier_t *barrier, int rank);

// Called by each rank once for each blocking call, before the epoch in bank 0,
// in the order of the calls. `capable`: GPUs can do it for this rank. A rank
// with host memory alone passes false, and does not wait.
void
wm_barrier_enter(wm_barrier_t *barrier, bool capable);

// Returns 0 until all ranks have entered the call that this rank has last
// entered; then 1 if all have asked for GPUs, -1 if a rank has not.
int
wm_barrier_all_entered(const wm_barrier_t *barrier);

// Who does a nonblocking call: GPUs if all ranks have voted for them.
typedef enum {
    WM_DECISION_OPEN,
    WM_DECISION_GPUS,
    WM_DECISION_MPI
} wm_decision_t;

// Called by each rank once for each call, in their order, numbered from 1 on.
// `capable`: GPUs can do it for this rank; else MPI does, and the decision
// need not be read. Returns false if the vote must be cast again, as this rank
// is so far ahead of others that there is no entry.
WM_MUST_CHECK bool
wm_barrier_vote(const wm_barrier_t *barrier, uint32_t call, bool capable);

// Returns the decision, if there is one; to be called no more after that, as
// another call may take the entry.
wm_decision_t
wm_barrier_decision(const wm_barrier_t *barrier, uint32_t call);

// MPI is to do it, unless all have voted for GPUs by now.
void
wm_barrier_withdraw(const wm_barrier_t *barrier, uint32_t call);

// The words that streams write: the value of ours, from which all ranks count,
// and the difference to where we began to count.
uint32_t
wm_barrier_streams_now(const wm_barrier_t *barrier);
uint32_t
wm_barrier_streams_at(const wm_barrier_t *barrier);
void
wm_barrier_set_streams(wm_barrier_t *barrier, int rank, uint32_t now);
// Work that will end by setting our word to the value is about to be enqueued.
// Returns true if our word has come there; if that of any communicator of this
// process has not: its stream may wait for what the program is about to do.
void
wm_barrier_promise(const wm_barrier_t *barrier, uint32_t value);
bool
wm_barrier_have_kept(const wm_barrier_t *barrier);
bool
wm_barrier_any_stream_waits(void);

// Sets our word, as no stream will; the second if the word is still `from`.
void
wm_barrier_leave(const wm_barrier_t *barrier, uint32_t value);
void
wm_barrier_leave_from(const wm_barrier_t *barrier, uint32_t from,
                      uint32_t value);

// Poisons the words of a dead rank (the size: the communicator is revoked), so
// that no stream here waits for it, nor, in graphs, for any other rank. Repeat
// while it returns true, as a graph has passed an epoch since: others may
// still write.
bool
wm_barrier_poison(const wm_barrier_t *barrier, int rank);

// Returns the rank that a rank of the barrier knows to be dead, from the abort
// flags; -1: none.
int
wm_barrier_dead(const wm_barrier_t *barrier);

// The abort flag, for kernels in graphs: a high value once a rank has died.
wm_word_op_t
wm_barrier_abort_word(const wm_barrier_t *barrier);

// The stream sets our word; the stream waits for a rank's word to come to the
// value, modulo 2^32.
WM_MUST_CHECK int
wm_barrier_enqueue_arrive(const wm_barrier_t *barrier, int device,
                          CUstream stream, uint32_t value, wm_error_t *err);
WM_MUST_CHECK int
wm_barrier_enqueue_wait(const wm_barrier_t *barrier, int rank, int device,
                        CUstream stream, uint32_t value, wm_error_t *err);

// The word that these two write, or wait for, and the value: for a kernel that
// does the same. Returns true if a rank's word has come to the value.
wm_word_op_t
wm_barrier_stream_word(const wm_barrier_t *barrier, int rank, uint32_t value);
bool
wm_barrier_stream_arrived(const wm_barrier_t *barrier, int rank,
                          uint32_t value);

// For graphs, whose nodes write the same values in each replay. Sets our words
// before any stream writes them; all ranks must know before they go on.
void
wm_barrier_begin_rounds(const wm_barrier_t *barrier);

// The streams of all ranks pass a round, and count epochs from 0 on; the
// streams arrive at epoch `number`, from 1 on, and wait for all others.
// The streams of each rank must do so in the same order.
WM_MUST_CHECK int
wm_barrier_enqueue_round(const wm_barrier_t *barrier, int device,
                         CUstream stream, wm_error_t *err);
WM_MUST_CHECK int
wm_barrier_enqueue_epoch(const wm_barrier_t *barrier, int device,
                         CUstream stream, uint32_t number, wm_error_t *err);

// The record of a rank about the calls that its streams were given.
wm_signature_area_t *
wm_barrier_signatures(const wm_barrier_t *barrier, int rank);

#endif
