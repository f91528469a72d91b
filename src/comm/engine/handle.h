// SPDX-License-Identifier: BSD-3-Clause
// Persistent MPI requests that stand for ours. A program can give their
// handles to C, start them by MPI_Start and wait for them by MPI_Wait. A
// handle is a persistent synchronous send of no data to this process itself.
// It is active from a start until we receive that message, when our operation
// has ended. A thread probes now and then for starts by C. GIL not held,
// unless noted.
#ifndef WM_COMM_ENGINE_HANDLE_H
#define WM_COMM_ENGINE_HANDLE_H

#include "comm/engine/op.h"

// Makes an inactive handle. `user` is where the program has the request. When
// that is null, the program has freed the request, and we no longer use it.
WM_MUST_CHECK int
wm_handle_new(const MPI_Request *user, wm_handle_t **handle, wm_error_t *err);

MPI_Request
wm_handle_request(const wm_handle_t *handle);

// Changes the place where the program has the request.
void
wm_handle_move(wm_handle_t *handle, const MPI_Request *user);

// Returns true if the program has started it by MPI itself, and no operation
// has begun for that start yet.
bool
wm_handle_is_started(const wm_handle_t *handle);

// Connects the request with `op`, which has begun. Makes the request active,
// unless the program has started it; it ends when `op` ends.
WM_MUST_CHECK int
wm_handle_begin(wm_handle_t *handle, wm_op_t *op, wm_error_t *err);

// Ends a start for which no operation could begin: waits for it return.
void
wm_handle_fail(wm_handle_t *handle);

// Ends the request of an operation that has ended. Lock held.
void
wm_handle_end_lock_held(wm_handle_t *handle);

// Frees the handle, now or when its operation has ended.
void
wm_handle_free(wm_handle_t *handle);

// Starts a thread, once, that looks for starts and calls `started`, which
// begins operations for all started handles. No-op if MPI is used by one
// thread at a time.
void
wm_handle_watch(void (*started)(void));

// Called in MPI_Finalize.
void
wm_handle_stop_thread(void);
void
wm_handle_end_all_lock_held(void);

#endif
