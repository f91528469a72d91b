// SPDX-License-Identifier: BSD-3-Clause
// The thread that reports long waits inside MPI, where we do not wait
// ourselves, and answers SIGUSR1 meanwhile. Any thread; the GIL may be held.
#ifndef WM_COMM_DIAGNOSTICS_WATCHDOG_H
#define WM_COMM_DIAGNOSTICS_WATCHDOG_H

#include "comm/engine/engine.h"

#define WM_WATCHDOG_MAKERS                                                    \
    "%d threads of this rank have made communicators at the same time, "      \
    "after "                                                                  \
    "which Open MPI 5 may hang: make them in one thread at a time"

// Called before and after a call that all ranks of `user` make. After `limit`
// microseconds (0: never) the report says that `call` waits for the other
// ranks, and adds the advice, which is never freed. Returns the number to give
// to wm_watchdog_end(); 0: the call is not watched.
int
wm_watchdog_begin(MPI_Comm user, int64_t limit, const char *call,
                  const char *advice);

void
wm_watchdog_end(int number);

// Adds to the number of threads that make a communicator, by any call of MPI.
// Returns the largest number so far; reports tell the number if it is above 1,
// as those may wait in vain that come after.
int
wm_watchdog_count_makers(int change);

// Looks for other waits, on the thread; may take the GIL. `asked`: SIGUSR1 has
// come. `watched`: the wait is reported here. Returns the time of the next
// look.
typedef int64_t
wm_watchdog_look_t(int64_t now, bool asked, bool watched);

// Sets that function; with NULL, the former one does not run any more. Returns
// false if there is no thread.
bool
wm_watchdog_set_look(wm_watchdog_look_t *look);

// Called by the signal's handler. Returns true if the thread will answer: a
// call is watched, or the engine is idle and a function looks.
bool
wm_watchdog_ask(bool idle);

#endif
