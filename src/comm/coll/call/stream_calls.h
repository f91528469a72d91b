// SPDX-License-Identifier: BSD-3-Clause
// The calls on streams of a communicator between hosts. No rank waits there on
// the host for another one, and libraries that move (movers/movers.h) cannot
// tell that a rank refuses a call. So each rank counts its calls, and one
// whose arguments are refused tells all others the number of the call, by a
// message of MPI on `data`, a *notice*. If all ranks refuse the call, it is
// *settled*, and the next one may begin. If a rank has begun a call that
// another one has refused, or fails in the middle of one, the communicator has
// *failed*: this rank tells all others, and each ends what waits on its
// streams (run/stream_watch.c). Nobody is given a limit of time: a late rank
// refuses, or begins, the call when it comes.
//
// A captured call that a rank refuses is missing in its graph. The rank tells
// this, too, with the number of the capture, and when it captures another
// graph. Nobody sees if graphs wait for it: a rank that has begun a graph of
// that capture, or a later one, and refused none, gives it five seconds after
// the last captured call. Then the communicator has failed.
#ifndef WM_COMM_COLL_CALL_STREAM_CALLS_H
#define WM_COMM_COLL_CALL_STREAM_CALLS_H

#include "comm/comm/comm.h"
#include "cuda/event.h"

#define WM_STREAM_NOTICE_LACKS ((uint64_t)1 << 62)

typedef struct {
    // The refused call's number. WM_STREAM_NOTICE_LACKS plus that of the
    // capture is for a captured one; its double says that the rank has
    // captured again, and 0 that the communicator has failed.
    uint64_t number;
    char text[240]; // the error
} wm_stream_notice_t;

typedef struct wm_stream_calls {
    struct wm_stream_calls *next; // in the list of all; engine lock
    wm_comm_t *comm;
    // Numbers of calls: of the last one; of the last one that this rank has
    // refused, and that all have. Engine lock, to write and to compare.
    uint64_t last;
    _Atomic uint64_t refused, settled;
    uint64_t *heard; // by rank: the last one that it has refused; engine lock
    // The last capture with such calls, the number of these captures so far,
    // and true if its graph has a mark (graph_memory.h); the capture in which
    // this rank has refused a call. By rank: the number of the capture whose
    // graph lacks a call. 0: none. Since when ranks have time to capture
    // again; the rank that told last that its graph lacks a call, and its
    // error. Engine lock.
    uint64_t captured_in, captures;
    bool marked;
    uint64_t refused_in;
    uint64_t *lacking_in;
    int64_t lacks_since;
    int lack_of;
    wm_stream_notice_t lack;
    // MPI may still be sending these.
    wm_stream_notice_t refusal, ending, lacks, again;
    bool used;           // there are calls, also in graphs
    _Atomic bool giving; // a thread gives a call, and may be blocked in it
    CUevent end;         // of the last call; NULL: not marked
    int device;
    _Atomic bool breaking, broken; // `failure` is written
    wm_error_t failure;
    bool heard_of_it; // by a notice: this rank tells nobody
    bool found;       // this rank has found it, and MPI tells nobody
    bool ended;       // what waits on streams has been ended
} wm_stream_calls_t;

// Makes them, unless they are made. Engine lock not held.
WM_MUST_CHECK int
wm_stream_calls_make(wm_comm_t *comm, wm_error_t *err);

void
wm_stream_calls_drop(wm_comm_t *comm);

// Returns all, linked by next. Engine lock held.
wm_stream_calls_t *
wm_stream_calls_all(void);

// Counts a call that this rank has begun; one that it refuses, which it tells.
void
wm_stream_calls_count(wm_comm_t *comm);
void
wm_stream_calls_refuse(wm_comm_t *comm, const wm_error_t *why);

// Counts the capture of a call, before it is captured: its graph will tell
// that it has begun.
WM_MUST_CHECK int
wm_stream_calls_capture(wm_comm_t *comm, int device, CUstream stream,
                        uint64_t capture, wm_error_t *err);

// Notes a captured call.
void
wm_stream_calls_captured(wm_comm_t *comm, uint64_t capture);

// Notes, and tells, that this rank has refused a captured call.
void
wm_stream_calls_lack(wm_comm_t *comm, uint64_t capture, const wm_error_t *why);

// Returns true if graphs may wait for a rank whose graph lacks a call.
bool
wm_stream_calls_are_captured(const wm_stream_calls_t *calls);

// Notes that the communicator has failed; of a level: the one whose level it
// is. The first error stays. Without calls on streams there is nothing to end.
// Any locks.
void
wm_stream_calls_fail(const wm_comm_t *comm, const wm_error_t *why);

// Tells all others that it has failed, unless they know. Engine lock held.
void
wm_stream_calls_tell(wm_stream_calls_t *calls);

// Returns 1 if a call may begin, also one that is on no stream; 0 before the
// refused one is settled; or the error of a communicator that has failed. Of a
// level as above. Engine lock held or not.
WM_MUST_CHECK int
wm_stream_calls_look(const wm_comm_t *comm, wm_error_t *err);

// Returns true if this rank has refused the last call, and it is not settled.
bool
wm_stream_calls_has_refused(const wm_comm_t *comm);

// Takes the notices that have come. Engine lock held.
void
wm_stream_calls_hear(wm_stream_calls_t *calls);

#endif
