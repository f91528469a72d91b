// SPDX-License-Identifier: BSD-3-Clause
// Atomic updates of a target that other processes update at the same time:
// dst[i] = dst[i] op src[i], for windows. Each element is updated at once; all
// together are not. Any thread; no GIL.
#ifndef WM_ARRAY_ATOMIC_H
#define WM_ARRAY_ATOMIC_H

#include "array/reduce.h"
#include "array/strided.h"
#include "kernels/atomic.h"

typedef struct {
    wm_reduce_type_t type;
    wm_reduce_op_t op; // REPLACE: dst becomes src; NO_OP: stays as it is
    void *dst;         // without gaps; or NULL
    const wm_strided_t *gaps; // the target in place of dst
    const void *src;
    const void *compare; // elements with other bits than these stay; NULL: all
                         // are updated
    void *fetched; // gets the elements as they were before; NULL: not wanted
    size_t count;  // on each side
    wm_signal_t signal; // word NULL: none
} wm_atomic_t;

// Returns true if MPI has the operation for these elements, and hardware can
// do so at once: elements have WM_ATOMIC_BYTES at most.
bool
wm_atomic_takes(wm_reduce_type_t type, wm_reduce_op_t op);

// Returns true if the size of an element divides the address of the target,
// its strides, and its runs. Either `dst` or `gaps` is NULL.
bool
wm_atomic_is_aligned(wm_reduce_type_t type, const void *dst,
                     const wm_strided_t *gaps);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_atomic_prepare(int device, wm_error_t *err);

// Enqueues one kernel. The device reaches all memory. The target is on it, on
// a device that is linked with it (wm_device_is_linked), or in page-locked
// memory: over PCIe alone a device's update of another device is not at once.
// Fails with WM_ERR_VALUE for what wm_atomic_takes() refuses, and for a target
// that wm_atomic_is_aligned() refuses.
WM_MUST_CHECK int
wm_atomic_enqueue(int device, const wm_atomic_t *atomic, CUstream stream,
                  wm_error_t *err);

#endif
