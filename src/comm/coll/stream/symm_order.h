// SPDX-License-Identifier: BSD-3-Clause
// The order of collectives through symmetric memory, by stream words: a call
// follows the call before it, waits for other ranks, and arrives at its steps.
// Internal to symm.c and symm_failure.c. Called with the lock of `symm` held.
#ifndef WM_COMM_COLL_STREAM_SYMM_ORDER_H
#define WM_COMM_COLL_STREAM_SYMM_ORDER_H

#include "comm/coll/stream/symm_state.h"

// Enqueues the wait until the streams of all other ranks have arrived at a
// step of a call.
WM_MUST_CHECK int
wm_symm_await(const wm_symm_t *symm, uint32_t call, uint32_t step,
              wm_error_t *err);

// Enqueues, now and then, the wait for ranks that are far behind.
WM_MUST_CHECK int
wm_symm_await_late(const wm_symm_t *symm, wm_error_t *err);

// Enqueues the arrival of our stream at a step of the call.
WM_MUST_CHECK int
wm_symm_arrive(const wm_symm_t *symm, uint32_t step, wm_error_t *err);

// Orders a call after the last one, `number`: nothing to do on the same
// stream.
WM_MUST_CHECK int
wm_symm_follow(wm_symm_t *symm, uint32_t number, CUstream stream,
               wm_error_t *err);

// Orders a captured call after the last one. Compares addresses of streams, as
// asking for an id would end the capture.
WM_MUST_CHECK int
wm_symm_follow_captured(wm_symm_t *symm, bool first, CUstream stream,
                        wm_error_t *err);

// Set our word far ahead, so that ranks that are ahead do not wait for us:
// wm_symm_leave_after() on our stream, after call `number`, or on the host if
// the driver fails here, too, as our streams have ended then;
// wm_symm_leave_by_own() on a stream of warpmpi, or at once if no call is
// under way; wm_symm_leave_by_host() at once.
void
wm_symm_leave_after(wm_symm_t *symm, uint32_t number);
void
wm_symm_leave_by_own(wm_symm_t *symm, uint32_t number);
void
wm_symm_leave_by_host(wm_symm_t *symm);

#endif
