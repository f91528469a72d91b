// SPDX-License-Identifier: BSD-3-Clause
// The struct of wm_symm_t: symm_make.c makes and recovers it, symm.c makes
// calls, symm_order.c orders these by stream words, symm_failure.c raises
// failures; stream_coll.c, which calls them, reads it. No other file includes
// this header.
#ifndef WM_COMM_COLL_STREAM_SYMM_STATE_H
#define WM_COMM_COLL_STREAM_SYMM_STATE_H

#include <pthread.h>

#include "comm/coll/stream/symm.h"
#include "comm/coll/stream/signature.h"

#define WM_SYMM_ENDED 0xffff // the last step of a call

struct wm_symm {
    wm_symm_t *next; // next in the list of those whose waits may raise
    pthread_mutex_t lock;
    wm_comm_t *comm;
    wm_barrier_t *barrier; // words count calls (in graphs turns) << 16 | steps
    bool captured;         // its calls are captured
    int device, rank, size;
    wm_symm_memory_t *memory;
    wm_thresholds_t thresholds; // of rank 0
    CUstream stream;            // of this call, or the last one
    uint64_t last;              // id of that stream; 0: captured, or not known
    CUevent ended;              // for captures: recorded after the last call
    // Kernels use the memory, as those of all ranks can run at once; else it
    // has two halves.
    bool kernel_coll;
    wm_signatures_t signatures; // signatures of the calls that were begun
    wm_kernel_coll_t kernels;   // state of the kernels
    uint32_t turn;              // its parity is the half of the next fragment
    uint64_t capture;           // of the last call; 0: forgotten
    uint64_t counted;           // capture that was counted last; 0: none
    uint32_t captures;          // number of captures so far
    uint32_t marks;             // calls of the capture that have marks
    uint32_t turns;             // turns taken so far: all; since a round
    size_t fragments;           // fragments of the last call that took a turn
    // The failure, as it was raised; code 0: none. With one, the next call
    // recovers; of captured calls, none goes on, and waits raise it once.
    wm_error_t lost;
    bool raised;
    wm_error_t former; // the failure before the last recovery
    // The first call that failed, for both; 0: not known.
    uint32_t lost_at, former_at;
    uint32_t epoch; // number of recoveries
    // Since when graphs have waited, when this was last seen, and reported;
    // the most looks of a kernel, and when half as many were seen. Engine
    // lock.
    int64_t awaited_since, awaited_at, reported;
    uint32_t looks;
    int64_t looked_at;
};

// Raises MPI's error if a rank has died; for good. Lock held.
WM_MUST_CHECK int
wm_symm_find_dead(const wm_symm_t *symm, wm_error_t *err);

// Counts the capture of a call, also of a refused one. Lock held.
void
wm_symm_count_capture(wm_symm_t *symm, uint64_t capture);

// Notes that the last call has failed: no call goes on until all ranks have
// recovered. Lock held.
void
wm_symm_set_lost(wm_symm_t *symm);

// --- the order of calls, by stream words; lock held ----------------------

// Enqueues the wait until the streams of all other ranks have arrived at a
// step of a call.
WM_MUST_CHECK int
wm_symm_await(const wm_symm_t *symm, uint32_t call, uint32_t step,
              wm_error_t *err);

// Enqueues, now and then, the wait for ranks that are far behind.
WM_MUST_CHECK int
wm_symm_await_late(const wm_symm_t *symm, wm_error_t *err);

// Enqueues the arrival of our stream at a step of the call.
WM_MUST_CHECK int
wm_symm_arrive(const wm_symm_t *symm, uint32_t step, wm_error_t *err);

// Orders a call after the last one, `number`: nothing to do on the same
// stream.
WM_MUST_CHECK int
wm_symm_follow(wm_symm_t *symm, uint32_t number, CUstream stream,
               wm_error_t *err);

// Orders a captured call after the last one. Compares addresses of streams, as
// asking for an id would end the capture.
WM_MUST_CHECK int
wm_symm_follow_captured(wm_symm_t *symm, bool first, CUstream stream,
                        wm_error_t *err);

// Set our word far ahead, so that ranks that are ahead do not wait for us:
// wm_symm_leave_after() on our stream, after call `number`, or on the host if
// the driver fails here, too, as our streams have ended then;
// wm_symm_leave_by_own() on a stream of warpmpi, or at once if no call is
// under way; wm_symm_leave_by_host() at once.
void
wm_symm_leave_after(wm_symm_t *symm, uint32_t number);
void
wm_symm_leave_by_own(wm_symm_t *symm, uint32_t number);
void
wm_symm_leave_by_host(wm_symm_t *symm);

#endif
