// SPDX-License-Identifier: BSD-3-Clause
// What a CUDA graph needs as long as it may run. Any thread; no GIL.
#ifndef WM_CUDA_CAPTURE_H
#define WM_CUDA_CAPTURE_H

#include "cuda/device.h"

// Calls released(object) once: when the graph into which the stream is
// captured, and all that were made of it, are destroyed and no longer run. A
// thread of the driver's may call it, and it must not call the driver. If this
// fails, it has been called.
WM_MUST_CHECK int
wm_capture_keep(int device, CUstream stream, void *object,
                void (*released)(void *object), wm_error_t *err);

#endif
