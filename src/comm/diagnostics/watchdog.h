// SPDX-License-Identifier: BSD-3-Clause
// The watchdog of a call that waits inside MPI, where we do not wait
// ourselves: a thread reports the call if it lasts long. GIL and engine lock
// not held.
#ifndef WM_COMM_DIAGNOSTICS_WATCHDOG_H
#define WM_COMM_DIAGNOSTICS_WATCHDOG_H

#include "comm/comm/comm.h"

typedef struct wm_watchdog wm_watchdog_t;

// Called before the call; collective over `user`. The report says
// that `call` waits for the other ranks, and adds the advice, which is never
// freed. NULL: nothing to watch, or out of memory.
wm_watchdog_t *
wm_watchdog_begin(MPI_Comm user, const char *call, const char *advice);

#endif
