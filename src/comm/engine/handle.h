// SPDX-License-Identifier: BSD-3-Clause
// Persistent requests of MPI's that stand for ours, so that a program can give
// their handles to C, start them by MPI_Start and wait for them by MPI_Wait.
// A handle is a persistent synchronous send of nothing to this process itself:
// it is active from a start until we receive that, when our operation has
// ended. A start by C is seen by a probe, which a thread makes every now and
// then. GIL not held, unless said.
#ifndef WM_COMM_ENGINE_HANDLE_H
#define WM_COMM_ENGINE_HANDLE_H

#include "comm/engine/op.h"

// A new inactive one. `user` is where the program has the request; it is not
// looked at any more once it is null there: somebody has freed it.
WM_MUST_CHECK int
wm_handle_new(const MPI_Request *user, wm_handle_t **handle, wm_error_t *err);

MPI_Request
wm_handle_request(const wm_handle_t *handle);

// The program has the request elsewhere from now on.
void
wm_handle_move(wm_handle_t *handle, const MPI_Request *user);

// Returns true if the program has started it by MPI itself, and no operation
// has begun for that start yet.
bool
wm_handle_is_started(const wm_handle_t *handle);

// `op` has begun: the request is active, unless the program has started it
// already, and ends when `op` does.
WM_MUST_CHECK int
wm_handle_begin(wm_handle_t *handle, wm_op_t *op, wm_error_t *err);

// Nothing could be begun for the start: waits for it return.
void
wm_handle_fail(wm_handle_t *handle);

// The operation has ended: so does the request. Lock held.
void
wm_handle_end_lock_held(wm_handle_t *handle);

// Frees it, now or when its operation has ended.
void
wm_handle_free(wm_handle_t *handle);

// From now on a thread looks for starts, and calls `started`, which looks at
// all handles and begins what was started. Once; nothing where MPI is used by
// one thread at a time.
void
wm_handle_watch(void (*started)(void));

// In MPI_Finalize.
void
wm_handle_stop_thread(void);
void
wm_handle_end_all_lock_held(void);

#endif
