// SPDX-License-Identifier: BSD-3-Clause
// Hang reports. A call that has waited for WARPMPI_HANG_SECONDS without
// progress reports itself on stderr, with the waits of its peers and the
// messages that it does not match. SIGUSR1 asks for the report at once. A
// short wait records nothing, and reads no clock.
#ifndef WM_COMM_DIAGNOSTICS_HANG_H
#define WM_COMM_DIAGNOSTICS_HANG_H

#include "comm/engine/engine.h"

// The blocking call of this thread, set before the thread waits.
typedef struct {
    const char *name;  // such as "Recv"; never freed
    MPI_Datatype type; // of elements; MPI_DATATYPE_NULL: not known
    bool collective;
    size_t nbytes; // of a collective
} wm_waiting_call_t;

extern _Thread_local wm_waiting_call_t wm_waiting_call;

// Sets it for a call of which no more is known.
void
wm_hang_call(const char *name, bool collective);

// The state of one wait.
typedef struct {
    wm_watcher_t watcher; // {wm_hang_begin, wm_hang_look}
    wm_waiting_call_t call;
    int64_t began, due;
    uint64_t mark; // progress mark of the operation
    int phase;
    int64_t asked;      // time when the peers were asked
    unsigned signalled; // signals handled so far
    uint32_t answered;  // questions answered so far
} wm_hang_t;

// Reads WARPMPI_HANG_SECONDS (10; 0: never) for a new communicator. The first
// time, installs the signal's handler unless there is one. WM_ERR_VALUE if it
// is no number. Engine lock held.
WM_MUST_CHECK int
wm_hang_configure(wm_error_t *err);

// Returns the microseconds until the first report; 0: never.
int64_t
wm_hang_limit(void);

// Returns the same for a call that waits inside MPI: a minute, unless
// WARPMPI_HANG_SECONDS is set.
int64_t
wm_hang_limit_inside(void);

// Returns "rank 0 of MPI_COMM_WORLD (size 2)", once configured.
const char *
wm_hang_who(void);

// Records a wait that is no longer short; then looks for something to report,
// or a peer to answer.
void
wm_hang_begin(wm_watcher_t *watcher, int64_t now);

void
wm_hang_look(wm_watcher_t *watcher, const wm_op_t *op, int64_t now);

#endif
