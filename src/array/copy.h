// SPDX-License-Identifier: BSD-3-Clause
// Copies between arrays of the same shape and dtype, in any mix of memory
// kinds, devices and strides. A copy is one contiguous copy; or, over a link
// where the strides allow it, one 2-D or 3-D copy; else one kernel. If neither
// device can reach both sides, it goes through contiguous temporaries. The GIL
// is not needed. A copy may wait on the host for pageable memory.
#ifndef WM_ARRAY_COPY_H
#define WM_ARRAY_COPY_H

#include "array/layout.h"

// Enqueues the copy on `stream` of `device`, which is the device of dst or of
// src. Ignores orders: the caller has ordered the stream. A copy between host
// memories is done before the return; if one of them is pinned and `device` is
// not -1, the host waits for `stream` first. Fails with WM_ERR_STATE if a
// captured stream would need a temporary.
WM_MUST_CHECK int
wm_copy_enqueue(const wm_array_t *dst, const wm_array_t *src, int device,
                CUstream stream, wm_error_t *err);

// Enqueues a copy between memories that kernels on `device` reach: as rows if
// one side is host memory, else by a kernel. The caller has ordered the
// stream.
WM_MUST_CHECK int
wm_copy_layout(const wm_layout_t *layout, int device, CUstream stream,
               wm_error_t *err);

// Copies by the ordering rule: takes a pool stream, orders it behind both
// producers, enqueues the copy, and then orders both producers behind the
// copy. If `blocking`, waits on the host for the copy instead. `stream`,
// unless NULL, replaces the pool stream of `device`; `device` -1 means that of
// dst, or else of src. A stream that is being captured takes the copy into its
// graph: then nothing is remembered, and the host does not wait.
WM_MUST_CHECK int
wm_copy_ordered(const wm_array_t *dst, const wm_producer_t *dst_producer,
                const wm_array_t *src, const wm_producer_t *src_producer,
                int device, CUstream stream, bool blocking, wm_error_t *err);

// Sets every element to the itemsize bytes at `value`, by the same rule.
WM_MUST_CHECK int
wm_fill(const wm_array_t *dst, const void *value, CUstream stream,
        bool blocking, wm_error_t *err);

#endif
