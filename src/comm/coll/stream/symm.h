// SPDX-License-Identifier: BSD-3-Clause
// Collectives on streams through symmetric memory (symm_memory.h), with words
// by which the streams of the ranks wait for each other. Calls are numbered,
// alike on all ranks, and so are a call's steps. The fragments of a call take
// turns in the two halves of a rank's memory, beginning with the half of the
// call's number; a half is written again after all ranks have arrived that
// read it. Captured calls have symmetric memory and words of their own, so
// that graphs and other calls need not wait for each other. A graph may be
// replayed any number of times, on each rank in the same order as all others.
// GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_STREAM_SYMM_H
#define WM_COMM_COLL_STREAM_SYMM_H

#include "comm/coll/call/graph_memory.h"
#include "comm/coll/stream/kernel_coll.h"
#include "comm/comm/comm.h"

#define WM_SYMM_STEPS 65000 // steps of a call, at most

// Makes the symmetric memory of a communicator for streams of one device, for
// captured calls or for others. Called by all ranks. If one has failed
// (`code`), all raise, and may try again.
WM_MUST_CHECK int
wm_symm_make(wm_comm_t *comm, int device, bool captured, int code,
             wm_error_t *err);

// Returns the bytes of one half.
size_t
wm_symm_half(const wm_symm_t *symm);

// Returns the thresholds that all ranks use; borrowed.
const wm_thresholds_t *
wm_symm_thresholds(const wm_symm_t *symm);

// Returns true if calls can use memory of `device`, as far as this rank knows.
bool
wm_symm_serves(const wm_symm_t *symm, int device);

// Begins a call on a stream, after the call before it; `desc` is NULL if the
// call has failed. Raises if the ranks' arguments differ, or if a rank has
// failed: then no call goes on until all ranks have recovered. If a rank has
// died, raises MPI's error for good (comm/coll/stream/stream_failure.h). After
// 0 the thread holds a lock until wm_symm_finish, and the call takes a turn,
// or exchanges, once.
WM_MUST_CHECK int
wm_symm_begin(wm_symm_t *symm, const wm_coll_desc_t *desc, CUstream stream,
              wm_error_t *err);

// Begins a call of a capture (wm_stream_capture). Nobody else need capture it
// at this time.
WM_MUST_CHECK int
wm_symm_begin_captured(wm_symm_t *symm, uint64_t capture, CUstream stream,
                       wm_error_t *err);

// Makes the words by which replays of this captured call are compared.
WM_MUST_CHECK int
wm_symm_mark_captured(wm_symm_t *symm, const wm_coll_desc_t *desc,
                      wm_graph_marks_t *marks, wm_error_t *err);

// If replays of the ranks have differed, as their marks tell, ends the kernels
// of graphs. Call repeatedly while it returns true; never blocks.
bool
wm_symm_end_replays(wm_symm_t *symm);

// Looks, now and then, if graphs wait for another rank. Returns the rank, and
// the microseconds that they have waited; -1: none. Engine lock held.
int
wm_symm_find_wait(wm_symm_t *symm, int64_t now, int64_t *waited);

// Returns true once a minute: a long wait is to be reported. Engine lock held.
bool
wm_symm_tells_wait(wm_symm_t *symm, int64_t now);

// Publishes that this rank has refused a captured call, with its error.
void
wm_symm_refuse_captured(wm_symm_t *symm, uint64_t capture,
                        const wm_error_t *err);

// Ends the kernels of graphs, if the rank for which they wait has refused a
// captured call, which its graph therefore lacks. Never blocks.
void
wm_symm_end_refused(wm_symm_t *symm, int rank);

// Takes a turn: the call goes through the halves, in fragments.
WM_MUST_CHECK int
wm_symm_begin_turn(wm_symm_t *symm, wm_error_t *err);

// Returns the half of `rank` that a fragment of this call uses.
char *
wm_symm_at(wm_symm_t *symm, int rank, size_t fragment);

// Enqueues the arrival at a step of the call, from 0 on, and the wait until
// all streams have arrived there, or have ended the call.
WM_MUST_CHECK int
wm_symm_step(wm_symm_t *symm, uint32_t step, wm_error_t *err);

// Enqueues the arrival at the end of the fragments, where others may wait for
// it: in a graph where ranks `varies` in their number, or there are several.
WM_MUST_CHECK int
wm_symm_leave_turn(wm_symm_t *symm, bool varies, wm_error_t *err);

// Enqueues the call as a kernel by LL, LL128 or Simple. Not a barrier.
WM_MUST_CHECK int
wm_symm_enqueue_kernel(wm_symm_t *symm, const wm_coll_desc_t *desc,
                       wm_error_t *err);

// Frees memory of the call when the stream has passed the work so far, or when
// the graph is gone.
WM_MUST_CHECK int
wm_symm_keep(wm_symm_t *symm, wm_block_t *memory, wm_error_t *err);

// Ends the enqueueing of a call. If that failed (`code`), other ranks will
// raise. Returns `code`, or an error of its own.
WM_MUST_CHECK int
wm_symm_finish(wm_symm_t *symm, int code, wm_error_t *err);

// Recovers from a failure that this rank knows of; no-op if there is none.
// Waits on the host until all ranks do the same and their streams have ended,
// and resets the state of all. Raises on all ranks if one has begun that call
// without recovering, as it knew of no failure, or if one has died.
WM_MUST_CHECK int
wm_symm_recover(wm_symm_t *symm, wm_error_t *err);

// Publishes that the last call failed after it was begun.
void
wm_symm_fail(wm_symm_t *symm);

// Returns the last call that was begun here: the number of recoveries before
// it, and in the low 32 bits its number after the last one.
uint64_t
wm_symm_place(const wm_symm_t *symm);

// Checks a call that the stream has passed, for its request. Raises if this
// call or one before it has failed. Returns 1 if another thread is in a call:
// try again.
WM_MUST_CHECK int
wm_symm_look(wm_symm_t *symm, uint64_t place, wm_error_t *err);

// Raise, once, a failure in calls that were begun here, if it was not raised
// before: of `symm` (NULL: none), or of all communicators, if there are any.
// They may wait for a thread that makes such a call.
WM_MUST_CHECK int
wm_symm_find_failure(wm_symm_t *symm, wm_error_t *err);

bool
wm_symm_any(void); // cheap, without a lock

WM_MUST_CHECK int
wm_symm_find_failures(wm_error_t *err);

// Waits until all ranks capture their first call. Called before that; `symm`
// is that of calls that are not captured. Raises on all ranks if one makes the
// call without a capture.
WM_MUST_CHECK int
wm_symm_arrive_captured(wm_symm_t *symm, const char *name, wm_error_t *err);

// Called when this rank makes no more calls. If its streams have ended their
// work, sets our word so that nobody waits for them. Returns true if they
// have.
bool
wm_symm_leave(wm_symm_t *symm);

// Releases peers from waiting for us after a rank has died, when our streams
// have ended their work. If ranks differ in the call that our stream is in,
// releases them from that call. Call repeatedly; never blocks.
void
wm_symm_release_peers(wm_symm_t *symm);

// Frees what a communicator has for its streams, when nobody uses it any more.
// If streams may still use it, as they wait for a rank that has left, the
// barrier stays, too.
void
wm_symm_drop(wm_comm_t *comm);

#endif
