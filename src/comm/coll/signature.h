// SPDX-License-Identifier: BSD-3-Clause
// Signatures of the calls that ranks gave to their streams: hashes of the
// arguments, which ranks publish and compare. If two ranks were asked for
// different calls, the later one finds out, in that call. Arguments that must
// be alike on all ranks are published to all; where counts vary, two ranks
// compare the bytes that they have from each other. Calls are numbered from 1
// on, also refused ones. GIL released by the caller; one thread at a time, but
// for wm_signatures_may_fail.
#ifndef WM_COMM_COLL_SIGNATURE_H
#define WM_COMM_COLL_SIGNATURE_H

#include "comm/coll/coll_desc.h"
#include "comm/node/barrier.h"

typedef struct {
    uint32_t calls;    // begun
    uint32_t captures; // of calls into graphs, so far
    // For the last WM_SIGNATURE_CALLS calls and each rank, hashes of the bytes
    // that we have given to that rank so far, and taken. NULL: counts have
    // never varied.
    uint64_t *pairs;
} wm_signatures_t;

// Why a call has failed, as published.
typedef enum {
    WM_SIGNATURES_REFUSED,  // or the driver failed
    WM_SIGNATURES_DIFFERS,  // from another rank's
    WM_SIGNATURES_CAPTURES, // this rank captures the call that others make
} wm_signatures_why_t;

// This rank has begun nothing.
void
wm_signatures_open(wm_signatures_t *signatures, const wm_barrier_t *barrier);

void
wm_signatures_close(wm_signatures_t *signatures);

// A call begins, and its signature is published; `desc` NULL: the call fails.
// Out of memory the call is begun likewise, and published in part.
WM_MUST_CHECK int
wm_signatures_begin(wm_signatures_t *signatures, const wm_barrier_t *barrier,
                    const wm_coll_desc_t *desc, wm_error_t *err);

// Publishes that a call has failed; only the first one.
void
wm_signatures_fail(const wm_barrier_t *barrier, uint32_t call,
                   wm_signatures_why_t why);

// Raises if a rank that is in the last call as well, or has passed it, was
// asked for something else, which we publish, or if a rank has failed in this
// call or an earlier one. `first` is the first that failed: all calls before
// it are right; 0: that is not known.
WM_MUST_CHECK int
wm_signatures_compare(const wm_signatures_t *signatures,
                      const wm_barrier_t *barrier, uint32_t *first,
                      wm_error_t *err);

// Raises if a rank has failed in a call that was begun here, or if a rank that
// is further behind than there are rows was asked for other counts.
WM_MUST_CHECK int
wm_signatures_find_failure(const wm_signatures_t *signatures,
                           const wm_barrier_t *barrier, uint32_t *first,
                           wm_error_t *err);

// Returns false if wm_signatures_find_failure would find nothing.
bool
wm_signatures_may_fail(const wm_signatures_t *signatures,
                       const wm_barrier_t *barrier);

// Publishes that our stream is in a call. Returns true if another's stream has
// been in this call as well, and was asked for something else. If only two
// ranks can see that, publishes that this rank has failed.
bool
wm_signatures_differ(const wm_signatures_t *signatures,
                     const wm_barrier_t *barrier, uint32_t call);

// This rank, which knows of a failure, begins a call in which it waits for the
// others. Returns 1 if all are there, 0 if one has not come. Raises if a rank
// has begun that call in any other way, as each rank then finds.
void
wm_signatures_recover(wm_signatures_t *signatures,
                      const wm_barrier_t *barrier);

WM_MUST_CHECK int
wm_signatures_all_recover(const wm_signatures_t *signatures,
                          const wm_barrier_t *barrier, wm_error_t *err);

// This rank begins a call into a graph. Returns 1 if all do, 0 if one has not
// come. Raises if a rank was refused it, or (`mixed`) has made a call without
// a capture that this one has not made.
void
wm_signatures_capture(wm_signatures_t *signatures,
                      const wm_barrier_t *barrier);

WM_MUST_CHECK int
wm_signatures_all_capture(const wm_signatures_t *signatures,
                          const wm_barrier_t *barrier, const char *name,
                          bool *mixed, wm_error_t *err);

// Publishes that this rank was refused it; if ranks mix it with calls without
// a capture (`mixed`), each rank sees that, and the call does not count.
void
wm_signatures_refuse_capture(wm_signatures_t *signatures,
                             const wm_barrier_t *barrier, bool mixed);

#endif
