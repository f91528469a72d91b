// SPDX-License-Identifier: BSD-3-Clause
// Where memory of a GPU lies that another process maps, and our own memory
// that peers may have mapped: of what was freed since they are given notice.
// Engine lock held.
#ifndef WM_COMM_NODE_PLACE_H
#define WM_COMM_NODE_PLACE_H

#include "cuda/memory.h"

typedef struct {
    uint64_t address;      // in its owner's process
    uint64_t base;         // of the allocation it lies in
    uint64_t size;         // of that allocation
    uint64_t buffer_id;    // likewise
    CUipcMemHandle handle; // likewise, where it was exported
} wm_place_t;

// The place of `data`, whose memory was described; its handle stays as it is.
void
wm_place_set(const void *data, const wm_pointer_t *memory, wm_place_t *place);

// Likewise with the handle by which peers map the allocation; that it was
// given out is remembered until the memory is freed.
WM_MUST_CHECK int
wm_place_export(const void *data, const wm_pointer_t *memory,
                wm_place_t *place, wm_error_t *err);

// Whether so many bytes from there on lie in the allocation.
bool
wm_place_holds(const wm_place_t *place, uint64_t nbytes);

// Gives notice of what was freed since; whether there was any.
bool
wm_place_notify(void);

#endif
