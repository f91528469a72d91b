// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other of the calls that they gave to their streams, so
// that a rank that was asked for something else than the others is found out
// by whoever comes to the same call later, in that call. What must be alike on
// all ranks is told to all; where counts vary, what two have from each other
// is told to that one, and only these two compare it. Calls are numbered from
// 1 on, also those that were refused. GIL released by the caller; one thread
// at a time, but for wm_told_is_news.
#ifndef WM_COMM_COLL_TOLD_H
#define WM_COMM_COLL_TOLD_H

#include "comm/coll/laid.h"
#include "comm/node/barrier.h"

typedef struct {
    uint32_t calls;    // begun
    uint32_t captures; // of calls into graphs, so far
    // Of the last WM_BARRIER_CALLS calls, for each rank: what it is given,
    // what it gives, as a number that stands for those before as well. NULL:
    // counts have never varied.
    uint64_t *pairs;
} wm_told_t;

// Why a call has failed, for the others.
typedef enum {
    WM_TOLD_REFUSED,  // or the driver failed
    WM_TOLD_DIFFERS,  // from another rank's
    WM_TOLD_CAPTURES, // this rank captures the call that others make
} wm_told_why_t;

// This rank has begun nothing.
void
wm_told_open(wm_told_t *told, const wm_barrier_t *barrier);

void
wm_told_close(wm_told_t *told);

// A call begins; `laid` NULL: it fails. Out of memory it is begun likewise,
// and told in part.
WM_MUST_CHECK int
wm_told_begin(wm_told_t *told, const wm_barrier_t *barrier,
              const wm_laid_t *laid, wm_error_t *err);

// A call has failed, which the others hear; only of the first.
void
wm_told_fail(const wm_barrier_t *barrier, uint32_t call, wm_told_why_t why);

// Raises where a rank that is in the last call as well, or has passed it, was
// asked for something else, which the others hear, or one has failed in it or
// in one before. All calls before the first of those that failed are right; 0:
// that is not known.
WM_MUST_CHECK int
wm_told_compare(const wm_told_t *told, const wm_barrier_t *barrier,
                uint32_t *first, wm_error_t *err);

// Raises where a rank has failed in a call that was begun here, or one that is
// further behind than calls are told was asked for other counts.
WM_MUST_CHECK int
wm_told_hear(const wm_told_t *told, const wm_barrier_t *barrier,
             uint32_t *first, wm_error_t *err);

// Whether that may be.
bool
wm_told_is_news(const wm_told_t *told, const wm_barrier_t *barrier);

// Our stream is in a call, as the others hear: whether one of theirs has been
// so in that as well, and was asked for something else. Where only two see it
// the others hear that this rank has failed.
bool
wm_told_is_amiss(const wm_told_t *told, const wm_barrier_t *barrier,
                 uint32_t call);

// This rank, which knows of a failure, begins a call in which it waits for the
// others: 1 where all are there, 0 where one has not come. Raises where a rank
// has begun that call in any other way, as each rank then finds.
void
wm_told_recover(wm_told_t *told, const wm_barrier_t *barrier);

WM_MUST_CHECK int
wm_told_all_recover(const wm_told_t *told, const wm_barrier_t *barrier,
                    wm_error_t *err);

// This rank begins a call into a graph: 1 where all do, 0 where one has not
// come. Raises where a rank was refused it, or (`mixed`) has made a call
// without a capture that this one has not made.
void
wm_told_capture(wm_told_t *told, const wm_barrier_t *barrier);

WM_MUST_CHECK int
wm_told_all_capture(const wm_told_t *told, const wm_barrier_t *barrier,
                    const char *name, bool *mixed, wm_error_t *err);

// This rank was refused it, as the others hear; where they mix it with calls
// without a capture (`mixed`) each sees that, and it is none.
void
wm_told_refuse_capture(wm_told_t *told, const wm_barrier_t *barrier,
                       bool mixed);

#endif
