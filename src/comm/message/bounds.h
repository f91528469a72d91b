// SPDX-License-Identifier: BSD-3-Clause
// What a peer says of a message, before it is believed: numbers of slots and
// rings, sizes and tags that are out of range are an error, and nothing is
// reached by them. A few comparisons; engine lock held.
#ifndef WM_COMM_MESSAGE_BOUNDS_H
#define WM_COMM_MESSAGE_BOUNDS_H

#include "comm/message/end.h"

// The header of a message that was matched, by end->peer. Sets end->slot of an
// offer where there is one, also where it fails: its sender hears of it then.
// WM_ERR_STATE.
WM_MUST_CHECK int
wm_bounds_check_header(wm_end_t *end, wm_error_t *err);

// The staging ring that a slot names. WM_ERR_STATE.
WM_MUST_CHECK int
wm_bounds_check_lane(const wm_end_t *end, uint32_t lane, uint32_t piece,
                     wm_error_t *err);

// Whether what came is not what the receive is of, and is thrown away: a
// pickle, or elements of another type. WM_ERR_TYPE in `err`.
bool
wm_bounds_refuse(const wm_end_t *end, wm_error_t *err);

#endif
