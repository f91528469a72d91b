// SPDX-License-Identifier: BSD-3-Clause
// Signals between ranks on a stream (kernels/peer_signal.h): kernels that
// raise a counter of a rank, or wait for one of ours, in memory that the
// device reaches. Calls can be captured. Any thread; no GIL.
#ifndef WM_ARRAY_PEER_SIGNAL_H
#define WM_ARRAY_PEER_SIGNAL_H

#include <stdbool.h>

#include "cuda/device.h"
#include "kernels/peer_signal.h"

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_peer_signal_prepare(int device, wm_error_t *err);

// Sets all bytes on a stream of ours, and does not wait.
WM_MUST_CHECK int
wm_peer_signal_poison(int device, void *dst, int byte, size_t nbytes,
                      wm_error_t *err);

// Enqueue: raise a counter of a rank behind all earlier work on the stream;
// hold the stream until a counter of ours has a value, and take the value
// unless it is to stay; meet all ranks. `shared` is on the host, its tables in
// memory that the device reaches. `spins`: kernels of all ranks run at once;
// else the stream waits without a kernel, for counters of one writer.
WM_MUST_CHECK int
wm_peer_signal_enqueue(int device, const wm_shared_t *shared, int rank,
                       int counter, uint64_t value, CUstream stream,
                       wm_error_t *err);
WM_MUST_CHECK int
wm_peer_wait_enqueue(int device, const wm_shared_t *shared,
                     wm_shared_word_t *own, int counter, uint64_t value,
                     bool takes, bool spins, CUstream stream, wm_error_t *err);
WM_MUST_CHECK int
wm_peer_barrier_enqueue(int device, const wm_shared_t *shared,
                        wm_shared_word_t *own, bool spins, CUstream stream,
                        wm_error_t *err);

#endif
