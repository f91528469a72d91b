// SPDX-License-Identifier: BSD-3-Clause
// A region: memory that transfers read or write (transfer_set.h), of this
// process or of a peer on this host. A peer's region is reached through a
// mapping, which the region holds until it is dropped. The place and the
// layouts are borrowed. Engine lock held where a mapping is used; GIL not
// needed.
#ifndef WM_COMM_TRANSFER_TRANSFER_REGION_H
#define WM_COMM_TRANSFER_TRANSFER_REGION_H

#include "comm/message/pattern.h"
#include "comm/node/mapping.h"
#include "comm/transfer/strided_desc.h"

typedef struct {
    wm_peer_t *peer;        // its owner; NULL: this process
    const wm_rkey_t *place; // as the owner published it; read until it is
                            // mapped. NULL: not known
    char *memory;           // address in this process; NULL: not mapped
    // Offsets in a region are those of packed memory. Its layout, if it has
    // gaps: as its owner published it, or as this process knows its own.
    const wm_strided_desc_t *gaps;
    const wm_pattern_t *pattern;
    wm_mapping_t *mapping; // NULL: none
} wm_transfer_region_t;

// Returns true if the published place holds these bytes. The numbers are
// another rank's, and may be anything; a rank trusts its own.
bool
wm_transfer_region_holds(const wm_transfer_region_t *region, size_t at,
                         size_t nbytes);

// Maps the region for `device`, unless it is mapped.
WM_MUST_CHECK int
wm_transfer_region_map(wm_transfer_region_t *region, int device,
                       wm_error_t *err);

// Returns true if neither region has gaps.
bool
wm_transfer_region_are_dense(const wm_transfer_region_t *into,
                             const wm_transfer_region_t *from);

// Returns true if one copy, or kernel, can do wm_transfer_region_copy().
bool
wm_transfer_region_can_copy(const wm_transfer_region_t *into, size_t at,
                            const wm_transfer_region_t *from, size_t begin,
                            size_t nbytes);

// Enqueues a copy of the `nbytes` from byte `begin` of `from` on, to byte `at`
// of `into`. Kernels on `device` reach both.
WM_MUST_CHECK int
wm_transfer_region_copy(const wm_transfer_region_t *into, size_t at,
                        const wm_transfer_region_t *from, size_t begin,
                        size_t nbytes, int device, CUstream stream,
                        wm_error_t *err);

#endif
