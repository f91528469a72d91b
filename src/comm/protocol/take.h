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

// Returns true if a kernel of ours can read the whole offered memory where it
// is.
bool
wm_take_is_mapped_whole(const wm_end_t *end);

// Ends the step of each protocol that takes. Returns its code, unless that is
// 0 and the sender has failed or died: wm_take_has_lost() asks MPI now and
// then, wm_take_sender_failed() returns 0 or the sender's own error.
WM_MUST_CHECK int
wm_take_watch(wm_end_t *end, int code, wm_error_t *err);
bool
wm_take_has_lost(wm_end_t *end, wm_error_t *err);
WM_MUST_CHECK int
wm_take_sender_failed(wm_end_t *end, wm_error_t *err);

// Fail such a protocol: wait until the operation's stream no longer touches
// the slot, and tell the sender why; wm_take_fail() does both.
int
wm_take_stop(wm_end_t *end);
void
wm_take_answer(wm_end_t *end, const wm_error_t *err);
bool
wm_take_fail(wm_end_t *end, const wm_error_t *err);
void
wm_take_peer_died(wm_end_t *end);

#endif
