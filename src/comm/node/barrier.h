// SPDX-License-Identifier: BSD-3-Clause
// The barrier of a communicator's ranks on one host. Each rank publishes data
// and its steps in a slot in its own segment, and reads the slots of the
// others. Epochs are numbered, and have steps; their data can be read until
// all ranks have begun the next epoch. A slot has several banks: one for
// blocking calls, others for nonblocking calls, which run concurrently. A rank
// writes its own slot only, except for the decision log of rank 0 and in
// wm_barrier_poison. Engine lock held for wm_barrier_slot…; one thread at a
// time calls the others.
#ifndef WM_COMM_NODE_BARRIER_H
#define WM_COMM_NODE_BARRIER_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/node/exchange_area.h"
#include "cuda/word.h"

// Words of streams, for collectives on streams (symm.c).
typedef struct {
    _Alignas(64) _Atomic uint32_t streams;
    // Words for graphs, which are replayed: the epoch in a round of three, in
    // which all streams arrive before a graph's first call; and the epochs
    // since then.
    _Atomic uint32_t round, epochs;
    _Atomic uint32_t abort_flag; // not 0: this rank knows of a dead rank
} wm_barrier_slot_t;

// The slot of a rank for a communicator, as other ranks learn it.
typedef struct {
    int32_t index;                      // index in its segment; -1: none
    uint32_t calls;                     // blocking calls that it has entered
    uint32_t arrived[WM_BARRIER_BANKS]; // its arrival words, by bank
} wm_barrier_slot_info_t;

typedef struct wm_barrier wm_barrier_t; // slots of all ranks of a communicator
struct wm_peer;                         // comm/node/node.h

// Takes an unused slot of ours. wm_barrier_slot_release() gives it back if the
// slots of the others were not found.
wm_barrier_slot_info_t
wm_barrier_slot_acquire(void);
void
wm_barrier_slot_release(int index);
// Returns the number of unused slots.
int
wm_barrier_slots_left(void);

// Returns the barrier of `size` ranks in a bank; NULL: out of memory. That of
// bank 0 ends by wm_barrier_close(), others by free(). Our slot is used again
// when all ranks have closed the barrier, as a slow one may yet read it.
wm_barrier_t *
wm_barrier_new(int rank, int size, int bank);
void
wm_barrier_close(wm_barrier_t *barrier);

void
wm_barrier_set(wm_barrier_t *barrier, int rank, const struct wm_peer *peer,
               const wm_barrier_slot_info_t *info);

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
// before the epoch in bank 0. `capable`: GPUs can do it for this rank. A rank
// with host memory alone passes false, and does not wait.
void
wm_barrier_enter(wm_barrier_t *barrier, bool capable);

// Returns 0 until all ranks have entered the call that this rank has last
// entered. Then returns 1 if all ranks are capable, -1 if one is not.
int
wm_barrier_all_entered(const wm_barrier_t *barrier);

// The decision on a nonblocking call: GPUs do it if all ranks vote for them.
typedef enum {
    WM_DECISION_OPEN,
    WM_DECISION_GPUS,
    WM_DECISION_MPI
} wm_decision_t;

// Votes on a call. Each rank votes once for each call, in their order,
// numbered from 1 on. `capable`: GPUs can do it for this rank; else MPI does,
// and the decision need not be read. Returns false if there is no entry yet,
// as this rank is far ahead of others: vote again later.
WM_MUST_CHECK bool
wm_barrier_vote(const wm_barrier_t *barrier, uint32_t call, bool capable);

// Returns the decision. After a decision it must not be called again, as
// another call may take the entry.
wm_decision_t
wm_barrier_decision(const wm_barrier_t *barrier, uint32_t call);

// Gives the call to MPI, unless all have voted for GPUs by now.
void
wm_barrier_withdraw(const wm_barrier_t *barrier, uint32_t call);

// The words that streams write: the value of ours, from which all ranks count;
// the difference since then; and the value of a rank's word at that time.
uint32_t
wm_barrier_streams_now(const wm_barrier_t *barrier);
uint32_t
wm_barrier_streams_at(const wm_barrier_t *barrier);
void
wm_barrier_set_streams(wm_barrier_t *barrier, int rank, uint32_t now);
// wm_barrier_promise(): work is about to be enqueued that will end by setting
// our word to the value. wm_barrier_have_kept() returns true if our word has
// reached it. wm_barrier_any_stream_waits() returns true if any word of this
// process has not: its stream may wait for what the program is about to do.
void
wm_barrier_promise(const wm_barrier_t *barrier, uint32_t value);
bool
wm_barrier_have_kept(const wm_barrier_t *barrier);
bool
wm_barrier_any_stream_waits(void);

// Set our word from the host, as no stream will; the second one only if the
// word is still `from`.
void
wm_barrier_leave(const wm_barrier_t *barrier, uint32_t value);
void
wm_barrier_leave_from(const wm_barrier_t *barrier, uint32_t from,
                      uint32_t value);

// Poisons the words of a dead rank, so that no stream here waits for it nor,
// in graphs, for any rank; `rank` == size: the communicator is revoked. Repeat
// while it returns true: then a graph has passed an epoch, and others may
// still write.
bool
wm_barrier_poison(const wm_barrier_t *barrier, int rank);

// Returns the rank that an abort flag names as dead; -1: none.
int
wm_barrier_dead(const wm_barrier_t *barrier);

// Returns the abort flag, for kernels in graphs: high once a rank has died.
wm_word_op_t
wm_barrier_abort_word(const wm_barrier_t *barrier);

// Enqueue: the stream sets our word to the value; the stream waits until a
// rank's word has reached the value, modulo 2^32.
WM_MUST_CHECK int
wm_barrier_enqueue_arrive(const wm_barrier_t *barrier, int device,
                          CUstream stream, uint32_t value, wm_error_t *err);
WM_MUST_CHECK int
wm_barrier_enqueue_wait(const wm_barrier_t *barrier, int rank, int device,
                        CUstream stream, uint32_t value, wm_error_t *err);

// The word and the value of these two, for a kernel that does the same.
// Returns true if a rank's word has reached the value.
wm_word_op_t
wm_barrier_stream_word(const wm_barrier_t *barrier, int rank, uint32_t value);
bool
wm_barrier_stream_arrived(const wm_barrier_t *barrier, int rank,
                          uint32_t value);

// Sets our words for graphs, whose nodes write the same values in each replay;
// before any stream writes them. All ranks must know before they go on.
void
wm_barrier_begin_rounds(const wm_barrier_t *barrier);

// Enqueue a round, which the streams of all ranks pass, and then count epochs
// from 0 on; and epoch `number`, from 1 on, at which the stream waits for all
// others. The streams of each rank must do so in the same order.
WM_MUST_CHECK int
wm_barrier_enqueue_round(const wm_barrier_t *barrier, int device,
                         CUstream stream, wm_error_t *err);
WM_MUST_CHECK int
wm_barrier_enqueue_epoch(const wm_barrier_t *barrier, int device,
                         CUstream stream, uint32_t number, wm_error_t *err);

// Returns a rank's record of the calls that its streams were given; borrowed.
wm_signature_area_t *
wm_barrier_signatures(const wm_barrier_t *barrier, int rank);

#endif
