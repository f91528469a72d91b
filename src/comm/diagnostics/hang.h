// SPDX-License-Identifier: BSD-3-Clause
// Hang reports: a call that has waited for WARPMPI_HANG_SECONDS without any
// progress reports itself on stderr, with what its peers wait for and what has
// come that it does not match; SIGUSR1 asks for the report at once. A short
// wait writes nothing down, and reads no clock.
#ifndef WM_COMM_DIAGNOSTICS_HANG_H
#define WM_COMM_DIAGNOSTICS_HANG_H

#include "comm/engine/engine.h"

// The blocking call that the thread is in, set by whoever knows it before it
// waits.
typedef struct {
    const char *name;  // "Recv", as long as the process
    MPI_Datatype type; // of the elements; MPI_DATATYPE_NULL: not known
    bool collective;
    size_t nbytes; // of a collective
} wm_call_t;

extern _Thread_local wm_call_t wm_call;

// One wait.
typedef struct {
    wm_watcher_t watcher; // WM_HANG_WATCHER
    wm_call_t call;
    int64_t began, due;
    uint64_t mark; // of how far the operation was
    int phase;
    int64_t asked;      // when the peers were
    unsigned signalled; // signals heeded
    uint32_t answered;  // questions answered
} wm_hang_t;

// Reads WARPMPI_HANG_SECONDS (10; 0: never) when a communicator is made, and
// installs the signal's handler where there is none, the first time.
// WM_ERR_VALUE for what is no number. Engine lock held.
WM_MUST_CHECK int
wm_hang_configure(wm_error_t *err);

// Microseconds until the first report; 0: none is made.
int64_t
wm_hang_limit(void);

// Writes it down once a wait is no longer short, then looks whether there is
// anything to say, or a peer to answer.
#define WM_HANG_WATCHER                                                       \
    (wm_watcher_t)                                                            \
    {                                                                         \
        .begin = wm_hang_begin, .look = wm_hang_look                          \
    }

void
wm_hang_begin(wm_watcher_t *watcher, int64_t now);

void
wm_hang_look(wm_watcher_t *watcher, const wm_op_t *op, int64_t now);

// The progress thread's: answers the signal where nobody waits.
void
wm_hang_serve(bool waited);

// What the signal's handler writes itself, until it is set to NULL: a line.
void
wm_hang_set_place(const char *line);

#endif
