// SPDX-License-Identifier: BSD-3-Clause
// Keys of UCX's remote memory access: memory of ours that peers reach by its
// key, and theirs. Engine lock held.
#ifndef WM_COMM_LINK_UCX_KEYS_H
#define WM_COMM_LINK_UCX_KEYS_H

#include "comm/link/ucx_library.h"
#include "cuda/memory.h"

typedef struct wm_ucx_exposed wm_ucx_exposed_t;
typedef struct wm_ucx_key wm_ucx_key_t;

// Registers memory of ours, for as long as it is exposed, and writes its key,
// if that fits into `room` bytes. Returns the key's length; 0: UCX cannot
// register it.
size_t
wm_ucx_expose(const wm_ucx_t *ucx, void *memory, size_t nbytes, bool on_device,
              void *key, size_t room, wm_ucx_exposed_t **exposed);

// Frees it, after wm_ucx_conceal() or the end of all.
void
wm_ucx_exposed_free(wm_ucx_exposed_t *exposed);

// Ends the registration; no-op if it has ended. Returns true if that was of
// device memory.
bool
wm_ucx_conceal(wm_ucx_exposed_t *exposed);

// Returns true if any memory is registered.
bool
wm_ucx_exposes(void);

// Opens a key of a peer, for its endpoint. Ends with wm_ucx_key_close(); or
// with wm_ucx_keys_close() of the endpoint, after which it is only freed.
WM_MUST_CHECK int
wm_ucx_key_open(void *ep, const void *bytes, size_t nbytes, wm_ucx_key_t **key,
                wm_error_t *err);
void
wm_ucx_key_close(wm_ucx_key_t *key);
void
wm_ucx_keys_close(const void *ep);

// Returns UCX's key; NULL: it has ended, or the `nbytes` from `offset` on are
// not in its memory. *address is the place of the first of these at the peer.
void *
wm_ucx_key_find(const wm_ucx_key_t *key, uint64_t offset, size_t nbytes,
                uint64_t *address);

// Ends all registrations, before the context is destroyed.
void
wm_ucx_keys_end(void);

#endif
