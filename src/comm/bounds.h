// SPDX-License-Identifier: BSD-3-Clause
// What a peer says of a message, before it is believed: numbers of slots and
// rings, sizes and tags that are out of range are an error, and nothing is
// reached by them. A few comparisons; engine lock held.
#ifndef WM_COMM_BOUNDS_H
#define WM_COMM_BOUNDS_H

#include "comm/op.h"

// The header of a message that was matched, by op->peer. Sets op->slot of an
// offer where there is one, also where it fails: its sender hears of it then.
// WM_ERR_STATE.
WM_MUST_CHECK int
wm_bounds_check_header(wm_op_t *op, wm_error_t *err);

// The staging ring that a slot names. WM_ERR_STATE.
WM_MUST_CHECK int
wm_bounds_check_lane(const wm_op_t *op, uint32_t lane, uint32_t piece,
                     wm_error_t *err);

#endif
