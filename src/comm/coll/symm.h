// SPDX-License-Identifier: BSD-3-Clause
// Collectives on streams through symmetric memory: memory of each rank
// (symm_memory.h) that all ranks of a communicator have mapped, and words by
// which their streams wait for each other. Calls are numbered, alike on all
// ranks, and so are a call's steps. A call's fragments take turns in the
// halves of a rank's memory, beginning with the half of the call's number: a
// half is written again once all ranks have arrived after they read it.
// Captured calls have symmetric memory and words of their own, so that graphs
// and other calls need not wait for each other; a graph may be replayed any
// number of times, on each rank in the same order as all others. GIL released
// by the caller, engine lock not held.
#ifndef WM_COMM_COLL_SYMM_H
#define WM_COMM_COLL_SYMM_H

#include "comm/coll/kernel_coll.h"
#include "comm/comm/comm.h"

#define WM_SYMM_STEPS 65000 // of a call, at most

// Makes those of a communicator, by all ranks: where one has failed (`code`),
// all raise, and may try again. They are for streams of one device, and
// captured or not.
WM_MUST_CHECK int
wm_symm_make(wm_comm_t *comm, int device, bool captured, int code,
             wm_error_t *err);

int
wm_symm_device(const wm_symm_t *symm);

// Bytes of half of one.
size_t
wm_symm_half(const wm_symm_t *symm);

bool
wm_symm_is_on_host(const wm_symm_t *symm);

// Whether kernels use them, as those of all ranks can run at once.
bool
wm_symm_has_kernels(const wm_symm_t *symm);

// Where calls through them change their way, on all ranks.
const wm_thresholds_t *
wm_symm_thresholds(const wm_symm_t *symm);

// Whether they serve memory of that device, as far as this rank knows.
bool
wm_symm_serves(const wm_symm_t *symm, int device);

// Begins a call on a stream, behind the one before it; `desc` NULL: it has
// failed. What a rank asks for must be alike on all, and of what varies what
// two have from each other on both. Raises where ranks are found to differ, or
// one to have failed, after which nothing goes until all have recovered, or,
// for good, where one has died (MPI's error, comm/coll/stream_failure.h).
// After 0 the thread holds a lock until wm_symm_end, and the call takes its
// turn, or exchanges, once.
WM_MUST_CHECK int
wm_symm_begin(wm_symm_t *symm, const wm_coll_desc_t *desc, CUstream stream,
              wm_error_t *err);

// Likewise of a call of a capture (wm_stream_capture), which all ranks have
// found alike, down to the fragments.
WM_MUST_CHECK int
wm_symm_begin_captured(wm_symm_t *symm, uint64_t capture, CUstream stream,
                       wm_error_t *err);

// The id of the stream of the call that was begun; 0: not known, or captured.
uint64_t
wm_symm_stream_id(const wm_symm_t *symm);

// Whether there was a call of this capture before; there was none.
bool
wm_symm_continue(const wm_symm_t *symm, uint64_t capture);

void
wm_symm_forget(wm_symm_t *symm);

// The call goes through the halves, in fragments.
WM_MUST_CHECK int
wm_symm_take_turn(wm_symm_t *symm, wm_error_t *err);

// The half of `rank` that a fragment of this call goes through.
char *
wm_symm_at(wm_symm_t *symm, int rank, size_t fragment);

// The stream tells that it has come to a step of the call, from 0 on, and
// waits until all have, or have ended it.
WM_MUST_CHECK int
wm_symm_step(wm_symm_t *symm, uint32_t step, wm_error_t *err);

// The stream tells that it has come to the end of the fragments.
WM_MUST_CHECK int
wm_symm_leave_turn(wm_symm_t *symm, wm_error_t *err);

// Gives the stream a call, but no barrier, as a kernel by LL,
// LL128 or Simple.
WM_MUST_CHECK int
wm_symm_exchange(wm_symm_t *symm, const wm_coll_desc_t *desc, wm_error_t *err);

// Frees memory of the call once the stream has passed what it was given, or,
// of a graph, which may run at any time, with `symm`.
WM_MUST_CHECK int
wm_symm_keep(wm_symm_t *symm, wm_block_t *memory, wm_error_t *err);

// The stream has been given all of the call; where that has failed (`code`)
// the others will raise. Returns that, or a failure of its own.
WM_MUST_CHECK int
wm_symm_end(wm_symm_t *symm, int code, wm_error_t *err);

// Returns true if this rank knows of a failure, so that the next call
// recovers.
bool
wm_symm_is_lost(const wm_symm_t *symm);

// After a failure that this rank knows of, the next call waits for the others,
// which do the same, on the host, and makes all as it was in the beginning,
// once their streams have come to an end. Else at once. Raises on all ranks
// where one has begun that call in another way, as it knew of no failure, or
// has died.
WM_MUST_CHECK int
wm_symm_recover(wm_symm_t *symm, wm_error_t *err);

// Publishes that the last call has failed after it was begun.
void
wm_symm_fail(wm_symm_t *symm);

// A call: of how many recoveries it comes behind, and its number since then.
typedef struct {
    uint32_t epoch, call;
} wm_symm_place_t;

// The last one that was begun here.
wm_symm_place_t
wm_symm_place(const wm_symm_t *symm);

// For the request of a call that the stream has passed: raises, as a call
// would, where one has failed in it or in one before. 1: another thread is in
// one, ask again.
WM_MUST_CHECK int
wm_symm_look(wm_symm_t *symm, wm_symm_place_t of, wm_error_t *err);

// Raises, once, the failure that another rank has published, or that was
// found, in calls that were begun here, if it was not raised yet: of `symm`
// (NULL: nothing), or of all. Cheap where there is nothing.
WM_MUST_CHECK int
wm_symm_find_failure(wm_symm_t *symm, wm_error_t *err);

WM_MUST_CHECK int
wm_symm_find_failures(wm_error_t *err);

// Before a call is captured; `symm` is that of calls that are not. Waits until
// all ranks capture one. Raises on all where one makes the call without a
// capture.
WM_MUST_CHECK int
wm_symm_arrive_captured(wm_symm_t *symm, const char *name, wm_error_t *err);

// This rank makes no more calls: once its streams have come to the end of what
// they were given, nobody waits for them. Returns whether they have.
bool
wm_symm_leave(wm_symm_t *symm);

// Releases peers from waiting for us: after a rank has died, once our streams
// have come to the end of their work; if ranks differ in the call that our
// stream is in, from that call. Call repeatedly; never blocks.
void
wm_symm_release_peers(wm_symm_t *symm);

// Frees `symm` when nobody uses the communicator any more. Returns false, and
// frees nothing, if streams may yet use the memory, as they wait for a rank
// that has left: then the barrier must stay, too.
bool
wm_symm_free(wm_symm_t *symm);

#endif
