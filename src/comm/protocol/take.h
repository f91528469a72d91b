// SPDX-License-Identifier: BSD-3-Clause
// The receiver's end of an offer. It claims the offer, a link makes the
// memory reachable, and then a protocol takes the fragments (rendezvous by
// get). Engine lock held.
#ifndef WM_COMM_PROTOCOL_TAKE_H
#define WM_COMM_PROTOCOL_TAKE_H

#include "comm/message/end.h"

// Returns true if the sender's memory is on the same GPU as ours.
bool
wm_take_is_on_same_gpu(const wm_end_t *end);

// Returns true if another peer's long message comes at the same time. Copy
// engines take one after the other; if two ranks read from a third at the same
// moment, each gets half of its bandwidth, while another rank waits.
bool
wm_take_is_beside(const wm_end_t *end);

// Ends the step of each protocol that takes. Returns its code, unless that is
// 0 and the sender has failed or died.
WM_MUST_CHECK int
wm_take_watch(wm_end_t *end, int code, wm_error_t *err);

// The functions that these protocols share (wm_receiving_t).
bool
wm_take_fail(wm_end_t *end, const wm_error_t *err);
void
wm_take_peer_died(wm_end_t *end);

#endif
