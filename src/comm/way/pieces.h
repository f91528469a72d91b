// SPDX-License-Identifier: BSD-3-Clause
// The pieces of an offer, and the words that tell of them: the sender writes
// piece i and then `ready`, the receiver takes it and then writes `taken`,
// which frees its place in the ring. A plain offer is a ring of one piece.
// Engine lock held.
#ifndef WM_COMM_WAY_PIECES_H
#define WM_COMM_WAY_PIECES_H

#include "comm/message/end.h"

// How many pieces a message has whose first two are a quarter and a half; it
// is longer than one.
uint32_t
wm_pieces_count_ramped(uint64_t nbytes, uint64_t piece);

// The pieces are those of the header, which are there.
void
wm_pieces_set(wm_end_t *end, char *remote);

// Where in the message a piece begins, and its bytes.
uint64_t
wm_piece_start(const wm_pieces_t *pieces, uint32_t index);
uint64_t
wm_piece_length(const wm_end_t *end, uint32_t index);

// Whether a piece is there; whether all are that the sender has begun so far;
// whether all of the message have been taken.
bool
wm_piece_is_ready(const wm_end_t *end, uint32_t index);
bool
wm_pieces_are_ready(const wm_end_t *end);
bool
wm_pieces_are_taken(const wm_end_t *end);

// Receiver: the word that tells how a kernel of ours has ended.
_Atomic uint32_t *
wm_pieces_status(const wm_end_t *end);

// What a batch tells of launching it: the next step raises where it failed.
void
wm_pieces_launched(wm_end_t *end, const wm_error_t *failure);

// Words tell the end for nothing, but no errors: now and then the driver is
// asked for those.
WM_MUST_CHECK int
wm_pieces_look_for_errors(wm_end_t *end, wm_error_t *err);

#endif
