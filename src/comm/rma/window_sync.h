// SPDX-License-Identifier: BSD-3-Clause
// The calls that synchronize a window: Fence; Post, Start, Complete and Wait;
// Lock and Unlock; Flush. Each ends the work of this rank that it is about. A
// call out of its order raises MPI_ERR_RMA_SYNC. Window's lock held, GIL
// released, engine lock not held; waits for other ranks let the window's lock
// go. Where a call exposes this rank's part, the caller has waited for the
// producer of its memory.
#ifndef WM_COMM_RMA_WINDOW_SYNC_H
#define WM_COMM_RMA_WINDOW_SYNC_H

#include "comm/rma/window.h"

// Fails unless the part of a rank may be accessed now. `call` is the name of
// the call.
WM_MUST_CHECK int
wm_window_check_epoch(const wm_window_t *window, int target, const char *call,
                      wm_error_t *err);

// Fails unless this rank may lock, or hold, the part of a rank.
WM_MUST_CHECK int
wm_window_check_held(const wm_window_t *window, int target, const char *call,
                     wm_error_t *err);

// Ends all epochs of Fence, and begins another one if `begins`. Collective. If
// it fails on one rank, `code` included, all raise.
WM_MUST_CHECK int
wm_window_fence(wm_window_t *window, bool begins, int code, wm_error_t *err);

// Waits for the lock of a rank's part, unless interrupted: WM_ERR_PYTHON then.
// `checked` is false if no other rank wants it.
WM_MUST_CHECK int
wm_window_lock_part(wm_window_t *window, int target, bool exclusive,
                    bool checked, wm_error_t *err);
WM_MUST_CHECK int
wm_window_unlock_part(wm_window_t *window, int target, wm_error_t *err);

// Does the same for the parts of all ranks, shared.
WM_MUST_CHECK int
wm_window_lock_all(wm_window_t *window, bool checked, wm_error_t *err);
WM_MUST_CHECK int
wm_window_unlock_all(wm_window_t *window, wm_error_t *err);

// The `count` ranks of a group access this rank's part (post), or are accessed
// (start). wm_window_wait() waits for those that were posted to; with
// `ended`, it only asks, and tells there. Both waits may be interrupted, if
// all ranks are on one host: WM_ERR_PYTHON, and they can be repeated.
WM_MUST_CHECK int
wm_window_post(wm_window_t *window, const int *ranks, int count,
               wm_error_t *err);
WM_MUST_CHECK int
wm_window_start(wm_window_t *window, const int *ranks, int count,
                wm_error_t *err);
WM_MUST_CHECK int
wm_window_end_access(wm_window_t *window, wm_error_t *err);
WM_MUST_CHECK int
wm_window_wait(wm_window_t *window, bool *ended, wm_error_t *err);

// Gives up a message of Post or Complete that has not come.
void
wm_window_drop_notice(wm_window_part_t *part, wm_window_notice_t what);

// Do the same on a stream of the program (calls: of epochs.h): the stream
// waits for the neighbours. In a window without a target. A call that fails
// opens and ends no epoch.
WM_MUST_CHECK int
wm_window_epochs_on(wm_window_t *window, unsigned call, const int *ranks,
                    int count, int device, CUstream stream, wm_error_t *err);

// Does so for Fence, by a barrier of the ranks' streams. `code`: an error of
// this rank so far, or 0. If it fails here, the others' streams do not wait
// for this rank's, unless they are captured.
WM_MUST_CHECK int
wm_window_fence_on(wm_window_t *window, bool begins, int code, int device,
                   CUstream stream, wm_error_t *err);

// Checks that no epoch is open, on all ranks, before the window is freed.
// Collective; if one rank has an epoch, all raise, and the window stays.
WM_MUST_CHECK int
wm_window_end(wm_window_t *window, wm_error_t *err);

#endif
