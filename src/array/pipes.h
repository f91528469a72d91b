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

// Enqueues a kernel. `params`: all but what `pipes` says, steps, unit,
// overlaid and op, which are found here; what is taken is reduced by `op`, to
// one place, where `reduces`, and wm_reduce_takes().
WM_MUST_CHECK int
wm_pipes_launch(int device, const wm_pipes_t *pipes, bool reduces,
                wm_reduce_type_t type, wm_reduce_op_t op,
                wm_pipes_params_t *params, CUstream stream, wm_error_t *err);

#endif
