// SPDX-License-Identifier: BSD-3-Clause
// The words by which streams of the ranks of a barrier wait for each other, in
// collectives on streams (symm.c). A rank's stream writes the rank's own word;
// the streams of others wait for a value. Values count from a base that all
// ranks know; graphs have words of their own. A rank writes the words of
// others in wm_stream_words_poison alone. Any thread, without a lock.
#ifndef WM_COMM_NODE_STREAM_WORDS_H
#define WM_COMM_NODE_STREAM_WORDS_H

#include "comm/node/barrier.h"
#include "cuda/word.h"

// The words that streams write: the value of ours, from which all ranks count;
// the difference since then; and the value of a rank's word at that time.
uint32_t
wm_stream_word_now(const wm_barrier_t *barrier);
uint32_t
wm_stream_word_at(const wm_barrier_t *barrier);
void
wm_stream_word_set_base(wm_barrier_t *barrier, int rank, uint32_t now);
// wm_stream_word_promise(): work is about to be enqueued that will end by
// setting our word to the value. wm_stream_word_is_kept() returns true if our
// word has reached it. wm_stream_words_any_waits() returns true if any word of
// this process has not: its stream may wait for what the program is about to
// do.
void
wm_stream_word_promise(const wm_barrier_t *barrier, uint32_t value);
bool
wm_stream_word_is_kept(const wm_barrier_t *barrier);
bool
wm_stream_words_any_waits(void);

// Set our word from the host, as no stream will; the second one only if the
// word is still `from`.
void
wm_stream_word_leave(const wm_barrier_t *barrier, uint32_t value);
void
wm_stream_word_leave_from(const wm_barrier_t *barrier, uint32_t from,
                          uint32_t value);

#define WM_WORDS_DIFFER(size) ((size) + 1)

// Poisons the words of a dead rank, so that no stream here waits for it nor,
// in graphs, for any rank; `rank` == size: the communicator is revoked, and
// WM_WORDS_DIFFER(size): replays of graphs differ. Repeat
// while it returns true: then a graph has passed an epoch, and others may
// still write.
bool
wm_stream_words_poison(const wm_barrier_t *barrier, int rank);

// Returns the rank that an abort flag names as dead; -1: none.
int
wm_stream_words_dead(const wm_barrier_t *barrier);

// Returns a rank for which our graphs have waited since the last call: kernels
// of theirs, long; or a stream, now. -1: none. *looks grows while a kernel
// waits; for a stream it is the highest value. *begun: a graph has begun
// since.
int
wm_graph_words_awaited(const wm_barrier_t *barrier, uint32_t *looks,
                       bool *begun);

// Returns the abort flag, for kernels in graphs: high once a rank has died.
wm_word_op_t
wm_stream_words_abort_op(const wm_barrier_t *barrier);

// Enqueue: the stream sets our word to the value; the stream waits until a
// rank's word has reached the value, modulo 2^32.
WM_MUST_CHECK int
wm_stream_word_enqueue_arrive(const wm_barrier_t *barrier, int device,
                              CUstream stream, uint32_t value,
                              wm_error_t *err);
WM_MUST_CHECK int
wm_stream_word_enqueue_wait(const wm_barrier_t *barrier, int rank, int device,
                            CUstream stream, uint32_t value, wm_error_t *err);

// The word and the value of these two, for a kernel that does the same.
// Returns true if a rank's word has reached the value.
wm_word_op_t
wm_stream_word_op(const wm_barrier_t *barrier, int rank, uint32_t value);
bool
wm_stream_word_arrived(const wm_barrier_t *barrier, int rank, uint32_t value);

// Sets our words for graphs, whose nodes write the same values in each replay;
// before any stream writes them. All ranks must know before they go on.
void
wm_graph_words_begin(const wm_barrier_t *barrier);

// Publish that this rank has refused a call of its capture `number`, whose
// graph lacks the call; and that it has captured a call of capture `number`,
// maybe another one. One thread at a time.
void
wm_graph_words_refuse(const wm_barrier_t *barrier, uint32_t number,
                      const char *text);
void
wm_graph_words_capture(const wm_barrier_t *barrier, uint32_t number);

// Returns true if the graph that waits here is of the capture in which a rank
// has refused a call, or of a later one; `captures`: of this rank. A rank may
// capture alone: if the other one has captured more graphs, the last one of
// this rank counts as that one.
bool
wm_graph_words_may_lack(const wm_barrier_t *barrier, int rank,
                        uint32_t captures);

// Returns true, and the error, if a rank, maybe this one, has refused a
// captured call, and captured no other graph since. Another rank must have
// refused more calls of that capture than this one.
bool
wm_graph_words_find_refusal(const wm_barrier_t *barrier, int rank,
                            char text[WM_GRAPH_REFUSAL_BYTES]);

// Enqueues that a replay sets our abort flag as if replays differed: the graph
// has a part of a call.
WM_MUST_CHECK int
wm_graph_words_enqueue_abort(const wm_barrier_t *barrier, int device,
                             CUstream stream, wm_error_t *err);

// Enqueue a round in a capture of this number, which the streams of all ranks
// pass, and then count epochs from 0 on; the arrival at epoch `number`, from 1
// on; the wait until all others have arrived there, or later; and both. The
// streams of each rank must do so in the same order.
WM_MUST_CHECK int
wm_graph_words_enqueue_round(const wm_barrier_t *barrier, int device,
                             CUstream stream, uint32_t capture,
                             wm_error_t *err);
WM_MUST_CHECK int
wm_graph_words_enqueue_arrive(const wm_barrier_t *barrier, int device,
                              CUstream stream, uint32_t number,
                              wm_error_t *err);
WM_MUST_CHECK int
wm_graph_words_enqueue_wait(const wm_barrier_t *barrier, int device,
                            CUstream stream, uint32_t number, wm_error_t *err);
WM_MUST_CHECK int
wm_graph_words_enqueue_epoch(const wm_barrier_t *barrier, int device,
                             CUstream stream, uint32_t number,
                             wm_error_t *err);

#endif
