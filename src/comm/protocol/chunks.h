// SPDX-License-Identifier: BSD-3-Clause
// Payloads that a link carries: host memory that does not fit with the header;
// and device memory if no segment is shared, if no slot is left, or if a link
// that carries was asked for. Engine lock held.
#ifndef WM_COMM_PROTOCOL_CHUNKS_H
#define WM_COMM_PROTOCOL_CHUNKS_H

#include "comm/message/end.h"

// Sender: announces in the header that the link carries chunks. The row has
// begun.
void
wm_chunks_announce(wm_end_t *end, const wm_link_t *link);

// Makes a step of the sender. Returns 1 when all is across, 0 if not yet.
WM_MUST_CHECK int
wm_chunks_send(wm_end_t *end, wm_error_t *err);

// Tells the receiver that no more chunks come.
bool
wm_chunks_fail(wm_end_t *end);

// Returns true when the link no longer reads our memory.
bool
wm_chunks_are_sent(wm_end_t *end);

// The other functions that both rows of senders share (wm_sending_t).
wm_asks_t
wm_chunks_asks(const wm_end_t *end);
uint64_t
wm_chunks_mark(const wm_end_t *end);
void
wm_chunks_drop(wm_end_t *end);

#endif
