// SPDX-License-Identifier: BSD-3-Clause
// Streams: creation, waiting, and a pool a device of non-blocking ones for the
// library's own copies. A stream handle belongs to a device, so each call
// takes both; CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are valid handles.
// Any thread; the GIL is not needed, and must be released around the
// synchronising calls by their caller.
#ifndef WM_CUDA_STREAM_H
#define WM_CUDA_STREAM_H

#include "cuda/device.h"

// A new non-blocking stream; owned by the caller.
WM_MUST_CHECK int
wm_stream_create(int device, CUstream *stream, wm_error_t *err);

void
wm_stream_destroy(int device, CUstream stream);

// One of the pool's streams, the caller's alone until given back: an idle one
// or a new one. Only where very many are busy it is one that was given back
// with work pending: as streams wait for submitted work only, that ends.
WM_MUST_CHECK int
wm_stream_acquire(int device, CUstream *stream, wm_error_t *err);

// Gives it back, with work still pending or not.
void
wm_stream_release(int device, CUstream stream);

// Gives it back after its work was waited for: whoever gets it next need not
// ask the driver, which costs 1.2 us (measured, H200).
void
wm_stream_release_idle(int device, CUstream stream);

// Asks a stream of the pool (nobody captures it) up to `tries` times whether
// it is idle: for work that ends within microseconds.
WM_MUST_CHECK int
wm_stream_spin(int device, CUstream stream, int tries, bool *idle,
               wm_error_t *err);

// Whether the handle is one of the default streams, which belong to whatever
// device, or thread, uses them.
static inline bool
wm_stream_is_default(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY
           || stream == CU_STREAM_PER_THREAD;
}

// One that no other stream of the process has, nor had: a handle may be that
// of one that is gone. 0 where it is not known, or another on each thread.
uint64_t
wm_stream_id(int device, CUstream stream);

// Whether everything submitted so far has ended. A stream being captured
// counts as busy.
WM_MUST_CHECK int
wm_stream_idle(int device, CUstream stream, bool *idle, wm_error_t *err);

WM_MUST_CHECK int
wm_stream_synchronize(int device, CUstream stream, wm_error_t *err);

// Everything submitted to `stream` (on `device`) after this call runs after
// everything submitted to `other` (on `other_device`) before it. Does not
// wait on the host; no-op for a stream and itself.
WM_MUST_CHECK int
wm_stream_follow(int device, CUstream stream, int other_device, CUstream other,
                 wm_error_t *err);

// `stream` waits until `event` (any device's) has happened.
WM_MUST_CHECK int
wm_stream_wait_event(int device, CUstream stream, CUevent event,
                     wm_error_t *err);

WM_MUST_CHECK int
wm_stream_is_capturing(int device, CUstream stream, bool *capturing,
                       wm_error_t *err);

// Of the capture that the stream is in, a number that no other has; 0: it is
// in none. WM_ERR_STATE for a default stream that captured ones are ordered
// with, as nothing can be given to it.
WM_MUST_CHECK int
wm_stream_capture(int device, CUstream stream, uint64_t *capture,
                  wm_error_t *err);

// WM_ERR_STATE where the stream, which the text calls `what`, is being
// captured, or is a default stream that captured ones are ordered with: work
// given to it would spoil the capture, which asking does not.
WM_MUST_CHECK int
wm_stream_refuse_capture(int device, CUstream stream, const char *what,
                         wm_error_t *err);

#endif
