// SPDX-License-Identifier: BSD-3-Clause
// Peers' allocations mapped here, kept because opening one costs 20 ms. Keyed
// by buffer id, since an address is reused: a mapping keeps freed memory
// taken, so its owner gives notice (place.h) and peers close. Bounded by
// bytes; short of memory, all unused ones are closed. None is while a stream
// may be waiting for another rank. Engine lock held, except where told.
#ifndef WM_COMM_NODE_MAPPING_H
#define WM_COMM_NODE_MAPPING_H

#include "comm/node/node.h"

// The mapping, for `device`, of the peer's allocation that a place lies in; in
// use until wm_mapping_release.
WM_MUST_CHECK int
wm_mapping_open(wm_peer_t *peer, const wm_place_t *place, int device,
                wm_mapping_t **mapping, wm_error_t *err);

// Likewise; a peer whose memory cannot be mapped is known for it from then on,
// which wm.transport() tells: the host serves.
WM_MUST_CHECK int
wm_mapping_reach(wm_peer_t *peer, const wm_place_t *place, int device,
                 wm_mapping_t **mapping, wm_error_t *err);

// Whether its failure is for good: not where memory is short, nor where freed
// memory at the address is still in use here.
bool
wm_mapping_is_refused(int code, const wm_error_t *err);

void
wm_mapping_release(wm_mapping_t *mapping);

// For who will use it again: it is released, and may be closed, but is known
// until it is resumed, where it is there still, or forgotten.
void
wm_mapping_rest(wm_mapping_t *mapping);
bool
wm_mapping_is_there(const wm_mapping_t *mapping);
void
wm_mapping_resume(wm_mapping_t *mapping);
void
wm_mapping_forget(wm_mapping_t *mapping);

// The place here.
char *
wm_mapping_at(const wm_mapping_t *mapping, const wm_place_t *place);

// Whether the progress thread could not map something, as it closes nothing:
// what stands in its way is to be closed by a thread of the program's. Without
// the lock.
bool
wm_mapping_is_closing_wanted(void);

// Closes it, for who waits anyway, and lets go of memory that was kept while a
// stream was waiting. Neither lock nor GIL held; nothing is closed where the
// lock is taken.
void
wm_mapping_close_stale(void);

// Returns true if the device may never be idle, because one of its streams
// waits for another rank: to close a mapping, or to free memory, would wait
// for the device. The lock is not needed.
bool
wm_mapping_would_wait(void);

// Closes what the peers have given notice of. Returns how many.
int
wm_mapping_heed_notices(void);

// What memory short of room calls (wm_memory_set_reclaim): posts notices and
// closes all unused mappings, of any device, unless that would wait for other
// ranks. Takes the lock itself, does nothing where it is taken; whether it may
// have freed some.
bool
wm_mapping_reclaim(int device);

#endif
