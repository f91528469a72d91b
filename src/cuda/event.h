// SPDX-License-Identifier: BSD-3-Clause
// Events without timing, and a pool of them for each device, to order streams
// inside the process. Any thread; the GIL is not needed.
#ifndef WM_CUDA_EVENT_H
#define WM_CUDA_EVENT_H

#include "cuda/device.h"

// Makes an event; owned by the caller.
WM_MUST_CHECK int
wm_event_create(int device, CUevent *event, wm_error_t *err);

void
wm_event_destroy(int device, CUevent event);

// Takes an event from the pool. The caller owns it alone until
// wm_event_release.
WM_MUST_CHECK int
wm_event_acquire(int device, CUevent *event, wm_error_t *err);

// Adds an owner to the event: each owner calls wm_event_release, and none
// records the event meanwhile. Returns false if too many events have several
// owners.
WM_MUST_CHECK bool
wm_event_share(int device, CUevent event);

void
wm_event_release(int device, CUevent event);

WM_MUST_CHECK int
wm_event_record(int device, CUevent event, CUstream stream, wm_error_t *err);

// Sets *done to true if the work captured by the last record has ended (or the
// event was never recorded).
WM_MUST_CHECK int
wm_event_done(int device, CUevent event, bool *done, wm_error_t *err);

// Returns true if that work has ended, or the context is lost, so that none
// runs. Another error of the driver does not tell.
bool
wm_event_has_ended(int device, CUevent event);

// Returns the error of the device's context if the context is lost, for
// example after an illegal address in any kernel. Any query of the driver
// tells.
WM_MUST_CHECK int
wm_event_look_for_errors(int device, wm_error_t *err);

WM_MUST_CHECK int
wm_event_synchronize(int device, CUevent event, wm_error_t *err);

#endif
