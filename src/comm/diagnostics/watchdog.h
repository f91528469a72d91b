// SPDX-License-Identifier: BSD-3-Clause
// The thread that reports long waits inside MPI, where we do not wait
// ourselves, and answers SIGUSR1 meanwhile. Any thread; the GIL may be held.
#ifndef WM_COMM_DIAGNOSTICS_WATCHDOG_H
#define WM_COMM_DIAGNOSTICS_WATCHDOG_H

#include "comm/engine/engine.h"

#define WM_WATCHDOG_AGAIN_US 60000000 // between two reports of a wait

// Called before and after a call that all ranks of `user` make. After `limit`
// microseconds (0: never) the report says that `call` waits for the other
// ranks, and adds the advice, which is never freed. Of calls in several
// threads the last one is reported. Returns true if it is watched, which
// wm_watchdog_end() is told.
bool
wm_watchdog_begin(MPI_Comm user, int64_t limit, const char *call,
                  const char *advice);

void
wm_watchdog_end(bool was_watched);

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
