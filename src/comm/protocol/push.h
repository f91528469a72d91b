// SPDX-License-Identifier: BSD-3-Clause
// Offers that the sender copies into the receiver's memory, because the
// receiver asks it to: large ones where as much goes the other way (two copies
// that write hinder each other less than two that read), and those between
// processes that share a GPU, which each have it in turn: whoever copied last
// still has it. Only of a sender who waits in our code. Engine lock held.
#ifndef WM_COMM_PROTOCOL_PUSH_H
#define WM_COMM_PROTOCOL_PUSH_H

#include "comm/message/end.h"

// Receiver, once it has claimed an offer and before that is accepted: whether
// the sender was asked.
bool
wm_push_ask(wm_end_t *end);

// Receiver: 1 when all is there, 0 when not yet, -1 when the receiver is to
// copy after all (no error).
int
wm_push_ended(wm_end_t *end);

// Receiver: takes the question back; whether in time, so that nobody writes
// its memory from now on.
bool
wm_push_withdraw(wm_end_t *end);

// Sender: copies if it has been asked, and is pushed from then on; negative
// when the receiver must be told.
WM_MUST_CHECK int
wm_push_serve(wm_end_t *end, wm_error_t *err);

// Sender: an offer has been taken, by its own copy, of which nothing is
// pending then, or the receiver's.
void
wm_push_note(wm_end_t *end, bool pushed);

#endif
