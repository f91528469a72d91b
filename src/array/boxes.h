// SPDX-License-Identifier: BSD-3-Clause
// Short collectives of several GPUs as one kernel on each (kernels/boxes.h),
// which waits for those of the others: they must all be able to run at once.
// Any thread; no GIL.
#ifndef WM_ARRAY_BOXES_H
#define WM_ARRAY_BOXES_H

#include <stdbool.h>
#include <stddef.h>

#include "array/reduce.h"
#include "kernels/boxes.h"

// A rank's boxes: bytes of them all, from a head on, of what lines, and how
// many blocks of a kernel may wait at once.
typedef struct {
    int64_t first;
    size_t nbytes;
    bool wide;
    uint32_t blocks;
} wm_boxes_t;

// Bytes of the longest part that those of so many ranks hold.
size_t
wm_boxes_room(const wm_boxes_t *boxes, int size);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_boxes_prepare(int device, wm_error_t *err);

// Memory of a rank's boxes, or what goes with them, before anybody writes it;
// waits for that.
WM_MUST_CHECK int
wm_boxes_clear(int device, char *memory, size_t nbytes, wm_error_t *err);

// Tells a rank's kernels of all ranks, before the first; waits for that.
WM_MUST_CHECK int
wm_boxes_introduce(int device, wm_boxes_own_t *own,
                   const wm_boxes_rank_t *ranks, int size, wm_error_t *err);

// Enqueues a kernel. `params`: all but first, box_bytes, unit and op, which
// are found here; `type` and `op` of what it reduces, where
// wm_reduce_takes(). `overlaid`: what is moved may lie over what is given at
// another place.
WM_MUST_CHECK int
wm_boxes_launch(int device, const wm_boxes_t *boxes, wm_reduce_type_t type,
                wm_reduce_op_t op, wm_boxes_params_t *params, bool overlaid,
                CUstream stream, wm_error_t *err);

#endif
