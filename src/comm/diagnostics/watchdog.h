// SPDX-License-Identifier: BSD-3-Clause
// Watchdog of a call that waits inside MPI, where no wait of ours is: a thread
// reports the call when it has lasted long. GIL and engine lock not held.
#ifndef WM_COMM_DIAGNOSTICS_WATCHDOG_H
#define WM_COMM_DIAGNOSTICS_WATCHDOG_H

#include "comm/comm/comm.h"

typedef struct wm_watchdog wm_watchdog_t;

// Before and after MPI makes what is behind a communicator of the user's,
// collective. NULL if there is nothing to watch, or no memory.
wm_watchdog_t *
wm_watchdog_begin(MPI_Comm user);

void
wm_watchdog_end(wm_watchdog_t *watchdog);

#endif
