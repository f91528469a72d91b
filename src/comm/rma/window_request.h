// SPDX-License-Identifier: BSD-3-Clause
// Requests of a window's calls (MPI's Rput, Rget, …) whose work a stream of
// ours does. A request ends when the stream has done the work of its call, and
// its results are where the program wants them; a call that synchronizes the
// window ends it as well. Window's lock held, GIL released, engine lock not
// held.
#ifndef WM_COMM_RMA_WINDOW_REQUEST_H
#define WM_COMM_RMA_WINDOW_REQUEST_H

#include "comm/rma/window_run.h"

// Begins a call as wm_window_begin(). *op has a reference for the caller.
WM_MUST_CHECK int
wm_window_begin_requested(wm_window_t *window, wm_window_call_t *call,
                          wm_op_t **op, wm_error_t *err);

// Ends all requests, whose work has ended, or has failed with `why` if `code`
// is negative.
void
wm_window_end_requests(wm_window_t *window, int code, const wm_error_t *why);

#endif
