// SPDX-License-Identifier: BSD-3-Clause
// The sender's end of an offer, whose header is the RTS of a rendezvous. An
// offer has a slot of the sender's segment, in whose words the two ends write
// to each other, and memory: the sender's own (direct), or an exportable copy
// in an eager LL buffer or a ring. Engine lock held.
#ifndef WM_COMM_PROTOCOL_OFFER_H
#define WM_COMM_PROTOCOL_OFFER_H

#include "comm/message/end.h"

// Notes that the first fragment will be ready in any case: a stream may wait
// for it.
void
wm_offer_posted(wm_end_t *end);

// Reports the end when the user's stream has all the work that reads the
// buffer: later work on it may change the buffer.
WM_MUST_CHECK int
wm_offer_end_for_stream(wm_end_t *end, wm_error_t *err);

// Begin and end the steps of all offers. wm_offer_look() returns an error that
// the receiver or MPI reports. wm_offer_ended() returns 1 when the receiver
// has taken everything and no word of ours is still to come, 0 if not yet.
WM_MUST_CHECK int
wm_offer_look(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_offer_ended(wm_end_t *end, bool pushed, wm_error_t *err);

// Makes a step of an offer without an answer yet; another protocol may begin.
WM_MUST_CHECK int
wm_offer_step(wm_end_t *end, wm_error_t *err);

// The functions that all offers share (wm_sending_t).
bool
wm_offer_fail(wm_end_t *end);
bool
wm_offer_heard(wm_end_t *end);
void
wm_offer_peer_died(wm_end_t *end);

// Returns true if the receiver never answers a message that has failed: it is
// dead, or its communicator was revoked before it took the offer. Looks only
// now and then.
bool
wm_offer_is_abandoned(wm_end_t *end);

#endif
