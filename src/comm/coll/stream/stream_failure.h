// SPDX-License-Identifier: BSD-3-Clause
// Failure detection for streams that wait for ranks that die, or that revoke a
// communicator. No call waits on the host. So the progress thread, and our
// code that waits for such a stream, ask MPI now and then about each
// communicator whose streams may be waiting: in collectives, for epochs
// (wm_epochs_release), or for messages in graphs (wm_captured_look). The words
// of a dead rank are poisoned, so that no stream waits for it
// (wm_stream_words_poison), and calls raise. The same looks release streams
// that wait for each other in a call in which ranks differ
// (wm_symm_release_peers). Engine lock held, except in functions of the
// progress thread.
#ifndef WM_COMM_COLL_STREAM_STREAM_FAILURE_H
#define WM_COMM_COLL_STREAM_STREAM_FAILURE_H

#include "comm/comm/comm.h"

// Makes the progress thread look, as a communicator has symmetric memory.
void
wm_stream_failure_watch(void);

// Looks at once, though MPI is asked as wm_failure_look says. Returns true if
// the streams of graphs are still being released, and the caller looks again
// at once.
bool
wm_stream_failure_look(wm_comm_t *comm);

#endif
