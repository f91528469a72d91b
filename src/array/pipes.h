// SPDX-License-Identifier: BSD-3-Clause
// Long collectives of several GPUs as one kernel on each (kernels/pipes.h),
// which waits for those of the others: they must all be able to run at once.
// Any thread; no GIL.
#ifndef WM_ARRAY_PIPES_H
#define WM_ARRAY_PIPES_H

#include <stdbool.h>
#include <stddef.h>

#include "array/reduce.h"
#include "kernels/pipes.h"

// What all ranks' pipes are like.
typedef struct {
    uint32_t channels;
    uint32_t slots; // so far may one who gives be ahead
    uint32_t slot_bytes;
} wm_pipes_t;

// So many bytes of memory for each of so many ranks; `blocks` of 512 threads
// of a kernel find room on any of their GPUs at once.
wm_pipes_t
wm_pipes_fit(size_t nbytes, int size, int blocks, bool on_host);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_pipes_prepare(int device, wm_error_t *err);

typedef enum {
    WM_PIPES_MOVE,
    WM_PIPES_REDUCE, // what is taken, to one place
    WM_PIPES_ALL,    // and then that is given back to all
} wm_pipes_work_t;

// Enqueues a kernel. `params`: all but what `pipes` says, steps, unit,
// overlaid and op, which are found here. It reduces by `op`, where
// wm_reduce_takes(). Of WM_PIPES_ALL each rank's part is at one place in `src`
// and `dst`, which are one array or have nothing in common.
WM_MUST_CHECK int
wm_pipes_launch(int device, const wm_pipes_t *pipes, wm_pipes_work_t work,
                wm_reduce_type_t type, wm_reduce_op_t op,
                wm_pipes_params_t *params, CUstream stream, wm_error_t *err);

#endif
