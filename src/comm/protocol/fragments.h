// SPDX-License-Identifier: BSD-3-Clause
// The fragments of an offer, and their words: the sender writes fragment i and
// then `ready`, the receiver takes the fragment and then writes `taken`, which
// frees its place in the ring. A plain offer is a ring of one fragment. Engine
// lock held.
#ifndef WM_COMM_PROTOCOL_FRAGMENTS_H
#define WM_COMM_PROTOCOL_FRAGMENTS_H

#include "comm/message/end.h"

// Returns the number of fragments of a message whose first two are a quarter
// and a half of `fragment` bytes. The message is longer than one fragment.
uint32_t
wm_fragments_count_ramped(uint64_t nbytes, uint64_t fragment);

// Sets end->fragments from the header; their memory is at `remote`.
void
wm_fragments_set(wm_end_t *end, char *remote);

// Return the offset of a fragment in the message, and its bytes.
uint64_t
wm_fragment_start(const wm_fragments_t *fragments, uint32_t index);
uint64_t
wm_fragment_length(const wm_end_t *end, uint32_t index);

// Return true if a fragment is ready; if all of the message have been taken.
bool
wm_fragment_is_ready(const wm_end_t *end, uint32_t index);
bool
wm_fragments_are_taken(const wm_end_t *end);

// Receiver: returns the word in which a kernel of ours writes how it ended.
_Atomic uint32_t *
wm_fragments_status(const wm_end_t *end);

// Called by a batch after the launch: if that failed, the next step raises.
void
wm_fragments_launched(wm_end_t *end, const wm_error_t *failure);

// Words tell the end but no errors. wm_fragments_ask_driver() returns true now
// and then; wm_fragments_look_for_errors() then looks at the operation's
// stream.
bool
wm_fragments_ask_driver(wm_end_t *end);
WM_MUST_CHECK int
wm_fragments_look_for_errors(wm_end_t *end, wm_error_t *err);

#endif
