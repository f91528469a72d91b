// SPDX-License-Identifier: BSD-3-Clause
// Failure detection for streams that wait for ranks that die, or revoke a
// communicator. No call waits on the host, so the progress thread, and our
// code that waits for such a stream, ask MPI now and then of each communicator
// that has symmetric memory and whose streams may be waiting. The words of a
// dead rank are poisoned, so that no stream here waits for it
// (wm_barrier_poison), and calls raise. The same looks release streams that
// wait for each other in a call in which ranks differ (wm_symm_release_peers).
// Engine lock held, but for what the progress thread asks.
#ifndef WM_COMM_COLL_STREAM_FAILURE_H
#define WM_COMM_COLL_STREAM_FAILURE_H

#include "comm/comm/comm.h"

// A communicator has symmetric memory: from now on the progress thread looks.
void
wm_stream_failure_watch(void);

// Looks at once, though MPI is asked as wm_failure_look says. Returns true if
// the streams of graphs are still being released, and the caller looks again
// at once.
bool
wm_stream_failure_look(wm_comm_t *comm);

// Looks at all communicators that are due. Called by wm_hooks.serve.
void
wm_stream_failure_serve(void);

// At the end of MPI: streams of this rank that wait for a rank that never
// began the call are let go when that rank comes to its end as well, and so
// are the others' that wait for this one. Waits for ranks that may come; lock
// not held.
void
wm_stream_failure_leave(void);

// For how long it may rest with nothing to do, in microseconds; 0: until
// something is begun.
int64_t
wm_stream_failure_rest(void);

#endif
