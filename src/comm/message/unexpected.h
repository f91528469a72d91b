// SPDX-License-Identifier: BSD-3-Clause
// The unexpected queue: messages that were taken from MPI without a receive,
// by a probe, which needs the header to know the size, or by a receive that
// was then interrupted. A receive looks here before it asks MPI. The queue has
// the first messages of each source, in order; MPI holds the later ones.
// Engine lock held.
#ifndef WM_COMM_MESSAGE_UNEXPECTED_H
#define WM_COMM_MESSAGE_UNEXPECTED_H

#include "comm/message/end.h"

typedef enum {
    WM_UNEXPECTED_NONE = 0, // no message matches
    WM_UNEXPECTED_TAKEN,
    WM_UNEXPECTED_ARRIVING, // reserved for the receive, which asks again
} wm_unexpected_match_t;

// Puts the message in end->packet back, with source and tag of end->op.result.
// Returns false when memory is exhausted.
bool
wm_unexpected_put(wm_end_t *end);

// Takes the first message that the receive matches into end->packet and
// end->op.result. Returns a wm_unexpected_match_t, or MPI's error.
WM_MUST_CHECK int
wm_unexpected_match(wm_end_t *end, wm_error_t *err);

// Looks again for a receive that was given to MPI while the lock was not held:
// a message that came to the queue meanwhile precedes those in MPI.
void
wm_unexpected_look_again(wm_end_t *end);

// Releases the message that is reserved for the receive.
void
wm_unexpected_let_go(const wm_end_t *end);

// Finds a message from `rank` with `tag` (or the wildcards). Sets *found, NULL
// if there is none, and *result. If the message is still in MPI, takes it into
// the queue, with all messages that came before it.
WM_MUST_CHECK int
wm_unexpected_probe(wm_comm_t *comm, int rank, int tag,
                    wm_unexpected_t **found, wm_result_t *result,
                    wm_error_t *err);

// Removes the message from the queue, for a receive of this message alone
// (wm_envelope_t.matched); wm_matched_return puts it back in its place.
void
wm_unexpected_remove(wm_comm_t *comm, wm_unexpected_t *entry);

// Reads a removed message into end->packet and end->op.result, and frees it.
void
wm_unexpected_open(wm_end_t *end, wm_unexpected_t *entry);

// Lists messages that no posted receive matches, in order of arrival, at most
// `most` of them. Returns their number. Takes as many from MPI.
int
wm_unexpected_list(wm_comm_t *comm, wm_result_t *list, int most);

#endif
