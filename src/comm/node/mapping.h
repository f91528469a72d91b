// SPDX-License-Identifier: BSD-3-Clause
// Mappings of peers' allocations. They are kept, because opening one costs 20
// ms, and found by buffer id, since addresses are reused. A mapping keeps
// freed memory allocated, so its owner gives notice (rkey.h) and peers close
// it. Their total size is bounded; if memory is short, all unused ones are
// closed. None is closed while a stream may be waiting for another rank.
// Engine lock held, except where noted.
#ifndef WM_COMM_NODE_MAPPING_H
#define WM_COMM_NODE_MAPPING_H

#include "comm/node/node.h"

// Opens the mapping, for `device`, of the peer's allocation that contains a
// place. It is in use until wm_mapping_release().
WM_MUST_CHECK int
wm_mapping_open(wm_peer_t *peer, const wm_rkey_t *place, int device,
                wm_mapping_t **mapping, wm_error_t *err);

// Opens the mapping likewise, and returns the address of the place here. The
// caller has asked wm_rkey_holds(). Remembers if the peer's memory cannot be
// mapped: wm.transport() tells so, and the host serves.
WM_MUST_CHECK int
wm_mapping_reach(wm_peer_t *peer, const wm_rkey_t *place, int device,
                 wm_mapping_t **mapping, char **at, wm_error_t *err);

// Returns true if the failure is for good: not if memory is short, and not if
// freed memory at the address is still in use here.
bool
wm_mapping_is_refused(int code, const wm_error_t *err);

// Ends a use of the mapping. Closes it if its memory was freed.
void
wm_mapping_release(wm_mapping_t *mapping);

// Releases a mapping for a user who will use it again. It may be closed, but
// is known until the user resumes it, if wm_mapping_is_there(), or forgets it.
void
wm_mapping_rest(wm_mapping_t *mapping);
bool
wm_mapping_is_there(const wm_mapping_t *mapping);
void
wm_mapping_resume(wm_mapping_t *mapping);
void
wm_mapping_forget(wm_mapping_t *mapping);

// Returns the address of the place in this process.
char *
wm_mapping_at(const wm_mapping_t *mapping, const wm_rkey_t *place);

// Returns true if the progress thread could not map memory, as it closes
// nothing: a thread of the program has to close the mappings in the way. The
// lock is not needed.
bool
wm_mapping_is_closing_wanted(void);

// Closes these mappings, for a caller who waits anyway, and frees memory that
// was kept while a stream was waiting. Neither lock nor GIL held; closes
// nothing if the lock is taken.
void
wm_mapping_close_stale(void);

// Returns true if a stream may be waiting for another rank. Then its device
// may never be idle, and to close a mapping, or to free memory, would wait for
// the device. The lock is not needed.
bool
wm_mapping_would_wait(void);

// Adds a function by which an upper module answers this for its streams,
// besides named ones and words. It waits for no lock. A few modules may add
// one each, when the engine starts.
void
wm_mapping_add_waits(bool (*waits)(void));

// Closes mappings of memory that the peers have given notice of. Returns how
// many.
int
wm_mapping_heed_notices(void);

// Frees memory if that is short (wm_memory_set_reclaim): posts notices and
// closes all unused mappings, of any device, unless that would wait for other
// ranks. Takes the lock; no-op if it is taken. Returns true if memory may have
// been freed.
bool
wm_mapping_reclaim(int device);

#endif
