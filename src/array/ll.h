// SPDX-License-Identifier: BSD-3-Clause
// The launcher of collectives by the LL and LL128 protocols, as in NCCL: one
// kernel on each GPU (kernels/ll.h). A kernel waits for the kernels of the
// other ranks, so all of them must be able to run at once. Any thread; no GIL.
#ifndef WM_ARRAY_LL_H
#define WM_ARRAY_LL_H

#include <stdbool.h>
#include <stddef.h>

#include "array/reduce.h"
#include "kernels/ll.h"

// A rank's LL buffers: their offset from the head, their bytes in all, the
// kind of line, and how many blocks of a kernel may wait at once.
typedef struct {
    int64_t first;
    size_t nbytes;
    bool ll128; // true: LL128 lines; false: LL lines
    uint32_t blocks;
} wm_ll_t;

// Returns the longest payload, in bytes, that an LL buffer holds with `size`
// ranks.
size_t
wm_ll_room(const wm_ll_t *ll, int size);

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_ll_prepare(int device, wm_error_t *err);

// Enqueues a kernel. The caller fills `params`, except first, buffer_bytes,
// unit and op. `type` and `op` say how the kernel reduces, if it does;
// wm_reduce_takes() is true for them. `overlaid`: the kernel may write over
// memory that it also sends from, at another place.
WM_MUST_CHECK int
wm_ll_launch(int device, const wm_ll_t *ll, wm_reduce_type_t type,
             wm_reduce_op_t op, wm_ll_params_t *params, bool overlaid,
             CUstream stream, wm_error_t *err);

#endif
