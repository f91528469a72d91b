// SPDX-License-Identifier: BSD-3-Clause
// The receiver's end of an offer: it is claimed, a transport makes the memory
// reachable, and then a protocol takes the fragments. Engine lock held.
#ifndef WM_COMM_PROTOCOL_TAKE_H
#define WM_COMM_PROTOCOL_TAKE_H

#include "comm/message/end.h"

// Whether the sender's memory is on the GPU that ours is on.
bool
wm_take_is_on_same_gpu(const wm_end_t *end);

// Whether this long message comes beside one of another peer: copy engines
// take one after the other, and two ranks that fetch of a third in the same
// moment get half, while another waits.
bool
wm_take_is_beside(const wm_end_t *end);

// What a step of each protocol that takes ends with: its code, unless that is
// 0 and the sender has failed, or has died.
WM_MUST_CHECK int
wm_take_watch(wm_end_t *end, int code, wm_error_t *err);

// In common (wm_receiving_t).
bool
wm_take_fail(wm_end_t *end, const wm_error_t *err);
void
wm_take_peer_died(wm_end_t *end);

#endif
