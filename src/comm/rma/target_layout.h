// SPDX-License-Identifier: BSD-3-Clause
// Gaps of a target's memory, as an origin tells them: for each part its
// offset, its run, its number of dimensions, and these. Any thread.
#ifndef WM_COMM_RMA_TARGET_LAYOUT_H
#define WM_COMM_RMA_TARGET_LAYOUT_H

#include "comm/message/pattern.h"

// Returns the words that parts take.
size_t
wm_target_layout_words(const wm_strided_t *parts, size_t count);

void
wm_target_layout_write(const wm_strided_t *parts, size_t count,
                       int64_t *words);

// Makes the pattern, with offsets in place of addresses, from what another
// rank has sent, and writes the offsets of the lowest byte and of the one
// behind the highest. Owned by the caller, and freed by free(). Returns
// WM_ERR_VALUE for impossible numbers, and unless the parts have `nbytes`, and
// each run whole elements of `size` bytes.
WM_MUST_CHECK int
wm_target_layout_read(const int64_t *words, size_t count, uint64_t nbytes,
                      size_t size, wm_pattern_t **pattern, int64_t *low,
                      int64_t *high, wm_error_t *err);

#endif
