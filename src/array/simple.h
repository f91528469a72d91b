// SPDX-License-Identifier: BSD-3-Clause
// The launcher of collectives by the Simple protocol, as in NCCL: one kernel
// on each GPU (kernels/simple.h). A kernel waits for the kernels of the other
// ranks, so all of them must be able to run at once. Any thread; no GIL.
#ifndef WM_ARRAY_SIMPLE_H
#define WM_ARRAY_SIMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "array/reduce.h"
#include "kernels/simple.h"

// The sizes of the FIFOs of the Simple protocol, the same on all ranks.
typedef struct {
    uint32_t channels;
    uint32_t slots; // the sender may be this many chunks ahead
    uint32_t slot_bytes;
} wm_simple_t;

// Returns the sizes for `size` ranks with `nbytes` of memory each, whose GPUs
// can each run `blocks` blocks of 512 threads of a kernel at once.
wm_simple_t
wm_simple_fit(size_t nbytes, int size, int blocks, bool on_host);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_simple_prepare(int device, wm_error_t *err);

typedef enum {
    WM_SIMPLE_MOVE,
    WM_SIMPLE_REDUCE, // reduces received data to one place
    WM_SIMPLE_ALL,    // then sends the result back to all
} wm_simple_work_t;

// Enqueues a kernel. The caller fills `params`, except steps, unit, overlaid,
// op and the members that `simple` has as well. The kernel reduces by `op`;
// wm_reduce_takes() is true for it. With WM_SIMPLE_ALL each rank's part is at
// the same offset in `src` and `dst`, which are one array or do not overlap.
WM_MUST_CHECK int
wm_simple_launch(int device, const wm_simple_t *simple, wm_simple_work_t work,
                 wm_reduce_type_t type, wm_reduce_op_t op,
                 wm_simple_params_t *params, CUstream stream, wm_error_t *err);

#endif
