// SPDX-License-Identifier: BSD-3-Clause
// Offers through the host: the sender fills a staging ring of its segment, a
// ring of page-locked buffers. There are few staging rings, and a receiver
// that computes, or is stopped, keeps its ring meanwhile. If all rings are
// kept, a link carries the payload, as to other hosts. Engine lock held.
#ifndef WM_COMM_PROTOCOL_STAGING_RING_H
#define WM_COMM_PROTOCOL_STAGING_RING_H

#include "comm/message/end.h"

// Sender, after the receiver has answered that it cannot reach the memory:
// changes the protocol as soon as possible. Returns 1 when it has, 0 if not
// yet.
WM_MUST_CHECK int
wm_staging_ring_begin(wm_end_t *end, wm_error_t *err);

// Receiver: gives this answer. Returns 1 if it must be called again. If the
// end has no slot after that, the payload comes in chunks.
WM_MUST_CHECK int
wm_staging_ring_accept(wm_end_t *end, wm_error_t *err);

#endif
