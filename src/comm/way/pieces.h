// SPDX-License-Identifier: BSD-3-Clause
// Offered memory, in one piece or through a ring of them: the receiver's
// pulling and the sender's feeding. Engine lock held.
#ifndef WM_COMM_WAY_PIECES_H
#define WM_COMM_WAY_PIECES_H

#include "comm/message/end.h"

// Receiver: whether the data come through a mailbox. What is staged does not.
bool
wm_pieces_are_boxed(const wm_end_t *end);

// Receiver: whether the sender's memory is on the GPU that ours is on.
bool
wm_pieces_on_same_gpu(const wm_end_t *end);

// How many pieces a message has whose first two are a quarter and a half; it
// is longer than one.
uint32_t
wm_pieces_count_ramped(uint64_t nbytes, uint64_t piece);

// Receiver: one step of pulling; 1 when all has been taken, 0 when not yet.
int
wm_pieces_pull(wm_end_t *end, wm_error_t *err);

// Sender: one step of filling a ring.
WM_MUST_CHECK int
wm_pieces_feed(wm_end_t *end, wm_error_t *err);

// Sender: what has been posted to a mailbox, and is to go through the host
// after all, comes out of that on the operation's stream, then `ready`: its
// buffer is the user's again, or has gaps.
WM_MUST_CHECK int
wm_pieces_take_back(wm_end_t *end, char *into, uint32_t ready,
                    wm_error_t *err);

#endif
