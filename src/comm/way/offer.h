// SPDX-License-Identifier: BSD-3-Clause
// What a sender offers: its own memory, or an exportable copy of it in a
// mailbox or a ring. Engine lock held.
#ifndef WM_COMM_WAY_OFFER_H
#define WM_COMM_WAY_OFFER_H

#include "comm/message/end.h"

// Fills the header of an operation that has a slot. Where the memory can be
// neither exported nor handed off the header says that the host has to serve;
// a negative code is for failures of the device alone.
WM_MUST_CHECK int
wm_offer_prepare(wm_end_t *end, wm_error_t *err);

// Whether the bytes go through a mailbox or a ring.
bool
wm_offer_hands_off(const wm_end_t *end);

// The first piece will be ready whatever comes: a stream may wait for it.
void
wm_offer_posted(wm_end_t *end);

// `ready` at once when nobody writes the buffer any more, else by whoever
// does, in order.
WM_MUST_CHECK int
wm_offer_announce(wm_end_t *end, wm_error_t *err);

// Whether the driver is to be asked about this send together with others
// (wm_batch_add_announcement): then it has taken note of its buffer's stream.
bool
wm_offer_waits_to_announce(wm_end_t *end);

// wm_offer_announce() after that.
WM_MUST_CHECK int
wm_offer_announce_noted(wm_end_t *end, wm_error_t *err);

#endif
