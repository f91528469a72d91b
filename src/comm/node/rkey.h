// SPDX-License-Identifier: BSD-3-Clause
// The place of GPU memory that another process maps; and notices about freed
// memory of ours that peers may have mapped. Engine lock held.
#ifndef WM_COMM_NODE_RKEY_H
#define WM_COMM_NODE_RKEY_H

#include "cuda/memory.h"

typedef struct {
    uint64_t address;      // in its owner's process
    uint64_t base;         // of the allocation that contains it
    uint64_t size;         // of the allocation
    uint64_t buffer_id;    // of the allocation
    CUipcMemHandle handle; // of the allocation, if it was exported
} wm_rkey_t;

// Fills the place of `data`, whose memory is described; the handle stays as it
// is.
void
wm_rkey_set(const void *data, const wm_pointer_t *memory, wm_rkey_t *place);

// Fills the place likewise, with the handle by which peers map the allocation.
// Remembers that the handle was given out, until the memory is freed.
WM_MUST_CHECK int
wm_rkey_export(const void *data, const wm_pointer_t *memory, wm_rkey_t *place,
               wm_error_t *err);

// Returns true if so many bytes from the address on are in the allocation.
bool
wm_rkey_holds(const wm_rkey_t *place, uint64_t nbytes);

// Gives notice of memory that was freed after it was exported. Returns true if
// there was any.
bool
wm_rkey_notify(void);

#endif
