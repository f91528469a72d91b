// SPDX-License-Identifier: BSD-3-Clause
// Signatures of the calls that ranks gave to their streams: hashes of the
// arguments, which ranks publish and compare. If two ranks were asked for
// different calls, the later one finds out, in that call. Arguments that must
// be alike on all ranks are published to all; where counts vary, two ranks
// compare the bytes that they have from each other. Calls are numbered from 1
// on, also refused ones. GIL released by the caller; one thread at a time,
// except for wm_signatures_may_fail.
#ifndef WM_COMM_COLL_STREAM_SIGNATURE_H
#define WM_COMM_COLL_STREAM_SIGNATURE_H

#include "comm/coll/stream/coll_desc.h"
#include "comm/node/barrier.h"

typedef struct {
    const wm_barrier_t *barrier;
    int rank, size;
    uint32_t calls;    // calls begun
    uint32_t captures; // calls captured into graphs
    // Hashes of all bytes that we have sent to each rank, and received, after
    // each of the last WM_SIGNATURE_CALLS calls. NULL: counts have never
    // varied.
    uint64_t *pairs;
} wm_signatures_t;

// The published reason why a call has failed.
typedef enum {
    WM_SIGNATURES_REFUSED,  // it was refused, or the driver failed
    WM_SIGNATURES_DIFFERS,  // it differs from another rank's call
    WM_SIGNATURES_CAPTURES, // this rank captures the call; others do not
} wm_signatures_why_t;

// Resets our published words: this rank has begun no call.
void
wm_signatures_open(wm_signatures_t *signatures, const wm_barrier_t *barrier);

// Frees the hashes of pairs.
void
wm_signatures_close(wm_signatures_t *signatures);

// Begins a call, and publishes its signature. `desc` is NULL if the call
// fails. If memory is short, the call has begun as well, and a part is
// published.
WM_MUST_CHECK int
wm_signatures_begin(wm_signatures_t *signatures, const wm_coll_desc_t *desc,
                    wm_error_t *err);

// Publishes that a call has failed; no-op if an earlier one has.
void
wm_signatures_fail(const wm_signatures_t *signatures, uint32_t call,
                   wm_signatures_why_t why);

// Raises if the arguments of our last call differ from those of another rank
// that has begun this call, and publishes the difference. Raises if a rank has
// failed in this call or in an earlier one. *first is the first call that
// failed; all calls before it are right. 0: not known.
WM_MUST_CHECK int
wm_signatures_compare(const wm_signatures_t *signatures, uint32_t *first,
                      wm_error_t *err);

// Raises if a rank has failed in a call that was begun here, or if a rank that
// is further behind than there are rows has other counts.
WM_MUST_CHECK int
wm_signatures_find_failure(const wm_signatures_t *signatures, uint32_t *first,
                           wm_error_t *err);

// Returns false if wm_signatures_find_failure would find nothing.
bool
wm_signatures_may_fail(const wm_signatures_t *signatures);

// Publishes that our stream is in a call. Returns true if the stream of
// another rank has been in this call with other arguments. If only two ranks
// can see the difference, publishes that this rank has failed.
bool
wm_signatures_differ(const wm_signatures_t *signatures, uint32_t call);

// wm_signatures_recover() begins the recovery call of a rank that knows of a
// failure. wm_signatures_all_recover() returns 1 when all ranks have come, 0
// before. It raises, on all ranks, if a rank has begun that call in any other
// way.
void
wm_signatures_recover(wm_signatures_t *signatures);

WM_MUST_CHECK int
wm_signatures_all_recover(const wm_signatures_t *signatures, wm_error_t *err);

// wm_signatures_capture() begins a captured call. wm_signatures_all_capture()
// returns 1 when all ranks have begun it, 0 before. It raises if a rank
// refused the call, or (*mixed) has made a call without a capture that this
// rank has not made.
void
wm_signatures_capture(wm_signatures_t *signatures);

WM_MUST_CHECK int
wm_signatures_all_capture(const wm_signatures_t *signatures, const char *name,
                          bool *mixed, wm_error_t *err);

// Publishes that this rank has refused the captured call. With `mixed`, ranks
// mix it with calls without a capture: each rank sees that, and the call does
// not count.
void
wm_signatures_refuse_capture(wm_signatures_t *signatures, bool mixed);

#endif
