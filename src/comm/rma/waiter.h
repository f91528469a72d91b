// SPDX-License-Identifier: BSD-3-Clause
// Waiters: things of this process in which streams wait for other ranks, such
// as shared arrays, halos and, once they are closed, windows. This module
// knows them all. It tells others if a stream may be waiting, ends the waits
// for a rank that has died, looks for waits that last long, and frees a waiter
// that the program has dropped once its work has ended and no graph has it. A
// waiter outlives its communicator, whose end only ends the calls.
#ifndef WM_COMM_RMA_WAITER_H
#define WM_COMM_RMA_WAITER_H

#include "comm/comm/comm.h"

typedef struct wm_waiter wm_waiter_t;

// The functions of a kind of waiters. None but free() may wait for a lock that
// a thread holds while it waits for another rank.
typedef struct {
    const char *name; // for errors: "shared array"
    // Returns true if the streams' work on it has ended, as far as the driver
    // tells. Any thread.
    bool (*has_ended)(wm_waiter_t *waiter);
    // Reports waits that have lasted for `limit` microseconds. Engine lock.
    // NULL: others do, as for end_waits().
    void (*report)(wm_waiter_t *waiter, int64_t now, int64_t limit);
    // Ends the waits for a rank; the size: for all, as the communicator is
    // revoked. Returns false if a later look has to try again. Engine lock.
    bool (*end_waits)(wm_waiter_t *waiter, int rank);
    // Tells the other ranks that this one has left, if they need to know, and
    // returns true if it can be freed. `may_wait`: free() may wait for the
    // device. Engine lock. NULL: it always can.
    bool (*is_left)(wm_waiter_t *waiter, bool may_wait);
    // Called by a thread without locks of the engine's. release(), or NULL, is
    // called later, without this module's locks, for objects of the program,
    // and frees the waiter itself then.
    void (*free)(wm_waiter_t *waiter);
    void (*release)(wm_waiter_t *waiter);
} wm_waiter_class_t;

// The first member of what a waiter is.
struct wm_waiter {
    const wm_waiter_class_t *class;
    wm_waiter_t *next;         // in the list
    wm_waiter_t *dropped;      // in the list of those just dropped
    wm_comm_t *comm;           // retained
    _Atomic bool freed;        // the user has freed the communicator
    bool is_dropped;           // engine lock
    _Atomic int dead;          // 1 + what end_waits() was called with; 0: none
    _Atomic int graphs;        // that have calls
    _Atomic uint32_t *shown;   // their number, for other ranks; or NULL
    _Atomic uint64_t captured; // the last of these, as a capture
};

// Adds a waiter. Engine lock not held.
void
wm_waiter_add(wm_waiter_t *waiter, const wm_waiter_class_t *class,
              wm_comm_t *comm);

// Raises if a rank has died, or the communicator is revoked or was freed.
WM_MUST_CHECK int
wm_waiter_check(const wm_waiter_t *waiter, wm_error_t *err);

// Keeps the waiter for the graph that a stream is captured into.
WM_MUST_CHECK int
wm_waiter_keep(wm_waiter_t *waiter, int device, CUstream stream,
               uint64_t capture, wm_error_t *err);

// Gives a waiter up. Never waits. Any thread, GIL held or not.
void
wm_waiter_drop(wm_waiter_t *waiter);

// Frees what was dropped and is left, also if another thread is just freeing
// it. Waits for no rank. GIL and engine lock not held.
void
wm_waiters_collect(void);

// Calls is_left() of what was dropped, and frees nothing. Engine lock held.
void
wm_waiters_leave(void);

#endif
