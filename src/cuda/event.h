// SPDX-License-Identifier: BSD-3-Clause
// Events, all untimed, and a pool a device of them for ordering inside the
// process. Any thread; GIL not needed.
#ifndef WM_CUDA_EVENT_H
#define WM_CUDA_EVENT_H

#include "cuda/device.h"

// A new event; owned by the caller.
WM_MUST_CHECK int
wm_event_create(int device, CUevent *event, wm_error_t *err);

void
wm_event_destroy(int device, CUevent event);

// An untimed event from the pool, the caller's alone until given back.
WM_MUST_CHECK int
wm_event_acquire(int device, CUevent *event, wm_error_t *err);

// One more owner of it, who gives it back as well; nobody records it again
// meanwhile. False where too many have several.
WM_MUST_CHECK bool
wm_event_share(int device, CUevent event);

void
wm_event_release(int device, CUevent event);

WM_MUST_CHECK int
wm_event_record(int device, CUevent event, CUstream stream, wm_error_t *err);

// Whether the work captured by the last record has ended (true if never
// recorded).
WM_MUST_CHECK int
wm_event_done(int device, CUevent event, bool *done, wm_error_t *err);

// The error of a context that is lost, by an illegal address in anybody's
// kernel, say: whoever asks for anything is told.
WM_MUST_CHECK int
wm_event_look_for_errors(int device, wm_error_t *err);

WM_MUST_CHECK int
wm_event_synchronize(int device, CUevent event, wm_error_t *err);

#endif
