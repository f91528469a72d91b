// SPDX-License-Identifier: BSD-3-Clause
// Device memory that is registered with UCX's adapters. Registrations are kept
// for later messages, by buffer id: an address is reused, an id never. They
// end before the memory is freed. The functions may be called by any thread,
// with or without the engine lock.
#ifndef WM_COMM_LINK_UCX_MEMORY_H
#define WM_COMM_LINK_UCX_MEMORY_H

#include "cuda/memory.h"

typedef struct wm_ucx_memory wm_ucx_memory_t;

// Registers the whole allocation, or finds its registration, which is in use
// until wm_ucx_memory_release(). Returns NULL if UCX cannot register the
// memory: it then stages the data.
wm_ucx_memory_t *
wm_ucx_memory_acquire(void *context, const wm_pointer_t *memory);

void
wm_ucx_memory_release(wm_ucx_memory_t *memory);

// Returns UCX's handle.
void *
wm_ucx_memory_handle(const wm_ucx_memory_t *memory);

// Ends the registration of an allocation that is about to be freed. No-op if
// there is none.
void
wm_ucx_memory_forget(uint64_t buffer_id);

// Ends all registrations, before the context is destroyed.
void
wm_ucx_memory_close(void);

#endif
