// SPDX-License-Identifier: BSD-3-Clause
// An offer that goes through the host: the sender fills a staging ring, a
// lane, of its segment. There are few lanes, and a receiver that computes, or
// is stopped, keeps its own for as long as it likes. Where that is so of all
// of them, a payload goes the way it goes to other hosts. Engine lock held.
#ifndef WM_COMM_WAY_LANES_H
#define WM_COMM_WAY_LANES_H

#include "comm/message/end.h"

// Sender: the receiver has answered that it cannot reach the memory. Another
// way begins as soon as it can.
WM_MUST_CHECK int
wm_lanes_begin(wm_end_t *end, wm_error_t *err);

// Receiver: answers that (wm_transport_t.accept). Without a slot after that,
// the payload comes in chunks.
WM_MUST_CHECK int
wm_lanes_accept(wm_end_t *end, wm_error_t *err);

// Gives back the lane of an operation that has one.
void
wm_lane_drop(wm_end_t *end);

#endif
