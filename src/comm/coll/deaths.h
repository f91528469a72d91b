// SPDX-License-Identifier: BSD-3-Clause
// Ranks that die, or revoke a communicator, while streams here wait for them:
// nobody waits on the host, so MPI is asked now and then of each communicator
// that has symmetric memory and whose streams may be waiting, by the progress
// thread, and by whoever waits for such a stream in our code. Once one has
// died nothing here waits for it any more (wm_barrier_bury), and calls raise.
// The same looks let go streams that wait for each other in a call in which
// ranks differ (wm_symm_give_up). Engine lock held, but for what the progress
// thread asks.
#ifndef WM_COMM_COLL_DEATHS_H
#define WM_COMM_COLL_DEATHS_H

#include "comm/comm/comm.h"

// A communicator has symmetric memory: from now on the progress thread looks.
void
wm_deaths_watch(void);

// Looks at once, though MPI is asked as wm_failure_look says. True where
// graphs' streams are being led on, and it is to look again at once.
bool
wm_deaths_look(wm_comm_t *comm);

// Whoever is behind wm_hooks.serve, now and then: looks at all that are due.
void
wm_deaths_serve(void);

// At the end of MPI: streams of this rank that wait for a rank that never
// began the call are let go when that rank comes to its end as well, and so
// are the others' that wait for this one. Waits for ranks that may come; lock
// not held.
void
wm_deaths_leave(void);

// For how long it may rest with nothing to do, in microseconds; 0: until
// something is begun.
int64_t
wm_deaths_rest(void);

#endif
