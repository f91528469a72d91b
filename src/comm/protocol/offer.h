// SPDX-License-Identifier: BSD-3-Clause
// The sender's end of an offer: a slot of its segment, whose words the two
// ends write to each other, and what is offered under it: its own memory
// (direct), or an exportable copy in an eager LL buffer or a ring. Engine lock
// held.
#ifndef WM_COMM_PROTOCOL_OFFER_H
#define WM_COMM_PROTOCOL_OFFER_H

#include "comm/message/end.h"

// The first fragment will be ready whatever comes: a stream may wait for it.
void
wm_offer_posted(wm_end_t *end);

// The user's stream has been given all that reads the buffer: what comes next
// on it may change it.
WM_MUST_CHECK int
wm_offer_end_for_stream(wm_end_t *end, wm_error_t *err);

// What the steps of all offers begin with, an error that the receiver or MPI
// tells, and end with: 1 when the receiver has taken everything and no word of
// ours is still to come, 0 when not yet.
WM_MUST_CHECK int
wm_offer_look(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_offer_ended(wm_end_t *end, bool pushed, wm_error_t *err);

// One step of an offer without an answer yet: another protocol may begin.
WM_MUST_CHECK int
wm_offer_step(wm_end_t *end, wm_error_t *err);

// Likewise in common (wm_sending_t).
bool
wm_offer_fail(wm_end_t *end);
bool
wm_offer_heard(wm_end_t *end);
void
wm_offer_peer_died(wm_end_t *end);

// Looks now and then. Returns true if the receiver never answers a message
// that has failed, as it is dead, or its communicator was revoked before it
// took the offer.
bool
wm_offer_is_abandoned(wm_end_t *end);

#endif
