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

// A side of an exchange by lines: the edge or the ghosts of a field, and the
// lines that they become or come from.
typedef struct {
    bool sends;
    char *lines; // the first of them, in even exchanges
    size_t half; // bytes to those of odd ones
} wm_halo_lines_t;

// Returns true if tasks with lines can do the copy.
bool
wm_halo_takes_lines(const wm_layout_t *layout);

// Writes the tasks of one side of the copy likewise, each of at most so many
// lines. The other side's addresses are not used, but tell how wide a unit is:
// they are the owner's, so that both ranks find the same.
size_t
wm_halo_cut_lines(const wm_layout_t *layout, const wm_halo_lines_t *side,
                  uint64_t lines, wm_halo_task_t *tasks);

// Returns the number of units of a copy.
uint64_t
wm_halo_units(const wm_layout_t *layout);

// Enqueues one kernel of at most `most` blocks: that for lines, if some tasks
// send, whose blocks have about as many threads as their tasks have lines.
WM_MUST_CHECK int
wm_halo_launch(int device, const wm_halo_params_t *params, uint32_t most,
               uint64_t lines, CUstream stream, wm_error_t *err);

#endif
