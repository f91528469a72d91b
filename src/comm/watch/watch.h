// SPDX-License-Identifier: BSD-3-Clause
// A call that waits inside MPI, where no wait of ours is: a thread says so
// when it has lasted long. GIL and engine lock not held.
#ifndef WM_COMM_WATCH_WATCH_H
#define WM_COMM_WATCH_WATCH_H

#include "comm/comm/comm.h"

typedef struct wm_watch wm_watch_t;

// Before and after MPI makes what is behind a communicator of the user's,
// collective. NULL where there is nothing to watch with.
wm_watch_t *
wm_watch_begin(MPI_Comm user);

void
wm_watch_end(wm_watch_t *watch);

#endif
