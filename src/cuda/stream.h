// SPDX-License-Identifier: BSD-3-Clause
// Streams: creation, waiting, and a pool of non-blocking streams for each
// device, for the library's own copies. A stream handle belongs to a device,
// so each call takes both; CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are valid
// handles. Any thread. The GIL is not needed; the caller releases it around
// the synchronising calls.
#ifndef WM_CUDA_STREAM_H
#define WM_CUDA_STREAM_H

#include "cuda/device.h"

// Makes a non-blocking stream; owned by the caller.
WM_MUST_CHECK int
wm_stream_create(int device, CUstream *stream, wm_error_t *err);

void
wm_stream_destroy(int device, CUstream stream);

// Takes a stream of the pool for the caller alone: an idle one, or a new one.
// If very many are busy, the stream may have pending work of an earlier owner;
// this work ends, because pool streams wait only for submitted work. Without
// memory for a new stream, the stream is shared with another owner, or is the
// device's legacy default stream.
WM_MUST_CHECK int
wm_stream_acquire(int device, CUstream *stream, wm_error_t *err);

// Gives a stream back, with or without pending work.
void
wm_stream_release(int device, CUstream stream);

// Gives a stream back whose work was waited for: the next owner need not query
// the driver, which costs 1.2 us (measured, H200).
void
wm_stream_release_idle(int device, CUstream stream);

// Asks a stream up to `tries` times whether it is idle; for work that ends
// within microseconds. It is a stream of the pool, or one of the program that
// is known not to be in a capture.
WM_MUST_CHECK int
wm_stream_spin(int device, CUstream stream, int tries, bool *idle,
               wm_error_t *err);

// Returns true if the handle is a default stream, which belongs to the device,
// or thread, that uses it.
static inline bool
wm_stream_is_default(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY
           || stream == CU_STREAM_PER_THREAD;
}

// Finds the device that a stream belongs to; for a default stream, the device
// of the context current on this thread. Fails with WM_ERR_VALUE if we see no
// such device.
WM_MUST_CHECK int
wm_stream_device(CUstream stream, int *ordinal, wm_error_t *err);

// Returns a number that no other stream of the process has or had; a handle
// may be reused after its stream is destroyed. Returns 0 if the id is unknown
// or differs between threads.
uint64_t
wm_stream_id(int device, CUstream stream);

// Sets *idle to true if all submitted work has ended. A stream being captured
// counts as busy.
WM_MUST_CHECK int
wm_stream_idle(int device, CUstream stream, bool *idle, wm_error_t *err);

WM_MUST_CHECK int
wm_stream_synchronize(int device, CUstream stream, wm_error_t *err);

// Makes everything submitted to `stream` (on `device`) after this call run
// after everything submitted to `other` (on `other_device`) before it. Does
// not wait on the host; does nothing if both are one stream.
WM_MUST_CHECK int
wm_stream_follow(int device, CUstream stream, int other_device, CUstream other,
                 wm_error_t *err);

// Makes `stream` wait until `event` (of any device) has happened.
WM_MUST_CHECK int
wm_stream_wait_event(int device, CUstream stream, CUevent event,
                     wm_error_t *err);

WM_MUST_CHECK int
wm_stream_is_capturing(int device, CUstream stream, bool *capturing,
                       wm_error_t *err);

#define WM_STREAM_CAPTURE_FAILED UINT64_MAX

// Writes a number that identifies the capture that the stream is in; 0: none.
// Fails with WM_ERR_STATE for a default stream that captured streams are
// ordered with, as no work can be given to it, and then leaves the number;
// and in a capture that has failed, whose number is WM_STREAM_CAPTURE_FAILED:
// who fails then does not take the stream for one that is not captured.
WM_MUST_CHECK int
wm_stream_capture(int device, CUstream stream, uint64_t *capture,
                  wm_error_t *err);

// Fails with WM_ERR_STATE if the stream, which the text calls `what`, is being
// captured, or is a default stream that captured streams are ordered with:
// work given to it would spoil the capture. This query does not.
WM_MUST_CHECK int
wm_stream_refuse_capture(int device, CUstream stream, const char *what,
                         wm_error_t *err);

#endif
