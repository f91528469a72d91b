// SPDX-License-Identifier: BSD-3-Clause
// The senders' rows that offer share these functions. An offer is a message
// whose header is the RTS of a rendezvous. The offer has a slot of the
// sender's segment; the two ends write to each other in the slot's words. The
// rows differ in the memory: the sender's own, or an exportable copy in an
// eager LL buffer or a ring. Engine lock held.
#ifndef WM_COMM_PROTOCOL_OFFER_H
#define WM_COMM_PROTOCOL_OFFER_H

#include "comm/message/end.h"

// Opens the offer of a row that tries to take a message: gives it a slot,
// unless a row before has, and fills the header as for one fragment. Returns
// false, and the reason, if nothing can be offered to the peer.
bool
wm_offer_open(wm_end_t *end, const char **why);

// Opens the offer of a row whose memory another process maps. Returns as
// above.
bool
wm_offer_open_mapped(wm_end_t *end, const char **why);

// Exports the memory through which a row hands the message off.
WM_MUST_CHECK int
wm_offer_export(wm_end_t *end, char *into, const wm_pointer_t *memory,
                wm_error_t *err);

// Notes the error for which a row does not take the message, which may then
// be staged. Returns it as a reason.
const char *
wm_offer_note(wm_end_t *end, const wm_error_t *err);

// Begins to hand the message off, through memory of ours.
void
wm_offer_hand_off(wm_end_t *end, char *into);

// Fills the rest of the header: the device, and why the host must serve.
WM_MUST_CHECK int
wm_offer_describe(wm_end_t *end, wm_stage_t stage, wm_error_t *err);

// Returns true if all of it is there: then the caller's buffer is free.
bool
wm_offer_is_handed_off(const wm_end_t *end);

// Notes that the first fragment will be ready in any case: a stream may wait
// for it.
void
wm_offer_posted(wm_end_t *end);

// Begin and end the steps of all offers. wm_offer_look() returns an error that
// the receiver or MPI reports. wm_offer_ended() returns 1 when the receiver
// has taken everything and no word of ours is still to come, 0 if not yet;
// `pushed`: by our copy, not the receiver's.
WM_MUST_CHECK int
wm_offer_look(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_offer_ended(wm_end_t *end, bool pushed, wm_error_t *err);

// Gives an offer that the receiver has answered to another row.
void
wm_offer_become(wm_end_t *end, const wm_sending_t *row, const char *why);

// Make a step of an offer without an answer yet, in two parts between which a
// row may do its own. The second may give the message to a staging ring.
WM_MUST_CHECK int
wm_offer_begin_step(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_offer_end_step(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_offer_step(wm_end_t *end, wm_error_t *err);

// Makes one step of filling a ring or a staging ring (handoff.c).
WM_MUST_CHECK int
wm_handoff_feed(wm_end_t *end, wm_error_t *err);

// Begins to push if the receiver asks for it (push.c). Returns 1 if the row is
// now `pushed`, 0 if not, or a negative code if the receiver must be told.
WM_MUST_CHECK int
wm_push_serve(wm_end_t *end, wm_error_t *err);

// The functions that all offers share (wm_sending_t). wm_offer_fail_posted()
// is for rows that nobody has answered, and tells if the message still comes;
// wm_offer_fail_handed_off() likewise, of memory of ours.
bool
wm_offer_fail(wm_end_t *end);
bool
wm_offer_fail_posted(wm_end_t *end);
bool
wm_offer_fail_handed_off(wm_end_t *end);
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
