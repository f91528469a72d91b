// SPDX-License-Identifier: BSD-3-Clause
// Events: a pool a device of untimed ones for ordering inside the process,
// and interprocess ones. Any thread; GIL not needed.
#ifndef WM_CUDA_EVENT_H
#define WM_CUDA_EVENT_H

#include "cuda/device.h"

typedef enum {
    WM_EVENT_ORDER = 0,        // untimed: what the pool holds
    WM_EVENT_TIMED = 1,        // can be timed
    WM_EVENT_INTERPROCESS = 2, // untimed, can be exported
} wm_event_kind_t;

// A new event; owned by the caller.
WM_MUST_CHECK int
wm_event_create(int device, wm_event_kind_t kind, CUevent *event,
                wm_error_t *err);

void
wm_event_destroy(int device, CUevent event);

// An untimed event from the pool, the caller's alone until given back.
WM_MUST_CHECK int
wm_event_acquire(int device, CUevent *event, wm_error_t *err);

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

// Milliseconds from `start` to `end`, both timed and ended.
WM_MUST_CHECK int
wm_event_elapsed(CUevent start, CUevent end, float *ms, wm_error_t *err);

// An interprocess event's handle, and an event opened from a peer's handle
// (owned; destroyed like any other).
WM_MUST_CHECK int
wm_event_export(int device, CUevent event, CUipcEventHandle *handle,
                wm_error_t *err);

WM_MUST_CHECK int
wm_event_import(int device, const CUipcEventHandle *handle, CUevent *event,
                wm_error_t *err);

#endif
