// SPDX-License-Identifier: BSD-3-Clause
// The lock of one rank's part of a window (MPI's Lock and Unlock), in words of
// this rank's segment: shared or exclusive, in the order in which ranks ask,
// so that no rank waits for ever. A rank asks, and then tries until it holds
// the lock. Its host does nothing. GIL not needed; engine lock held where
// words are taken and given back.
#ifndef WM_COMM_RMA_WINDOW_LOCK_H
#define WM_COMM_RMA_WINDOW_LOCK_H

#include "comm/node/node.h"

// Takes words of our segment, for a window of ours. Returns their index, which
// is given back by wm_segment_words_give(), or an error.
int
wm_window_lock_acquire_words(wm_error_t *err);

// Returns the words that a peer, which shares its segment, has told the index
// of; NULL: the number is impossible.
wm_window_words_t *
wm_window_lock_words(const wm_peer_t *peer, int index);

// Draws a ticket.
uint32_t
wm_window_lock_ask(wm_window_words_t *words);

// Returns true when the lock is held. Not called again then.
bool
wm_window_lock_try(wm_window_words_t *words, uint32_t ticket, bool exclusive);

// Gives the lock back.
void
wm_window_lock_leave(wm_window_words_t *words, bool exclusive);

// Stands for the rank whose engine updates its own part for others.
#define WM_WINDOW_RANK_OF_ENGINE 0x7ffffffe

// Take the part for an update of elements that hardware does not update at
// once, and give it back. `rank`: ours. The first returns false if another
// rank has it.
bool
wm_window_lock_try_update(wm_window_words_t *words, int rank);

// Returns the rank that updates; -1: none.
int
wm_window_lock_updater(wm_window_words_t *words);
void
wm_window_lock_end_update(wm_window_words_t *words);

#endif
