// SPDX-License-Identifier: BSD-3-Clause
// Launches the kernel of halo exchanges (kernels/halo.h). Any thread; no GIL.
#ifndef WM_ARRAY_HALO_H
#define WM_ARRAY_HALO_H

#include "array/layout.h"
#include "cuda/device.h"
#include "kernels/halo.h"

// Loads the kernel, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_halo_prepare(int device, wm_error_t *err);

// Writes the tasks of a copy, each of at most `units` units, for the neighbour
// with this index, and returns how many there are; with `tasks` NULL it only
// counts. The sides of the layout do not overlap.
size_t
wm_halo_cut(const wm_layout_t *layout, uint32_t peer, uint64_t units,
            wm_halo_task_t *tasks);

// Returns the number of units of a copy.
uint64_t
wm_halo_units(const wm_layout_t *layout);

// Enqueues one kernel of at most `most` blocks.
WM_MUST_CHECK int
wm_halo_launch(int device, const wm_halo_params_t *params, uint32_t most,
               CUstream stream, wm_error_t *err);

#endif
