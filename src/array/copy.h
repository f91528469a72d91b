// SPDX-License-Identifier: BSD-3-Clause
// Copies between arrays of the same shape and dtype, in any mix of memory
// kinds, devices and strides: one contiguous copy, one 2-D or 3-D copy over a
// link where the strides allow it, else one kernel (packing through a
// contiguous temporary where the two sides cannot see each other). GIL not
// needed; may wait on the host for pageable memory.
#ifndef WM_ARRAY_COPY_H
#define WM_ARRAY_COPY_H

#include "array/layout.h"

// Loads the copy kernels for `device`, so that nothing is loaded later, while
// a capture may go on. Idempotent.
WM_MUST_CHECK int
wm_copy_prepare(int device, wm_error_t *err);

// Enqueues the copy on `stream` of `device` (which is that of dst or of src)
// without looking at orders: the caller has ordered the stream. Between host
// memories it is done at once, after `stream` where one of them is pinned
// (`device` -1: not even then). WM_ERR_STATE where a captured stream would
// need a temporary.
WM_MUST_CHECK int
wm_copy_enqueue(const wm_array_t *dst, const wm_array_t *src, int device,
                CUstream stream, wm_error_t *err);

// Enqueues a copy between memories that kernels on `device` reach, in rows to
// or from the host, or by a kernel; the caller has ordered the stream.
WM_MUST_CHECK int
wm_copy_layout(const wm_layout_t *layout, int device, CUstream stream,
               wm_error_t *err);

// The whole rule: picks a pool stream, waits for what both producers demand,
// copies, tells them unless it was waited for, and with `blocking` waits on
// the host until it is done. `stream`, unless NULL, is used instead of a pool
// stream of `device`; -1 for `device` takes that of dst, or else of src. A
// stream that is being captured takes the copy into its graph: nothing is
// remembered then, nor waited for after it.
WM_MUST_CHECK int
wm_copy_ordered(const wm_array_t *dst, const wm_producer_t *dst_producer,
                const wm_array_t *src, const wm_producer_t *src_producer,
                int device, CUstream stream, bool blocking, wm_error_t *err);

// Sets every element to the itemsize bytes at `value`; same rule.
WM_MUST_CHECK int
wm_fill(const wm_array_t *dst, const void *value, CUstream stream,
        bool blocking, wm_error_t *err);

#endif
