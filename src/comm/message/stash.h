// SPDX-License-Identifier: BSD-3-Clause
// Messages that were taken from MPI without a receive: by a probe, which alone
// cannot know their size, or by a receive that was then interrupted. The next
// receive that matches takes them before MPI is asked. Of each source the
// stash holds all that came before whatever it holds, in that order, so that
// what MPI still has is later. Engine lock held.
#ifndef WM_COMM_MESSAGE_STASH_H
#define WM_COMM_MESSAGE_STASH_H

#include "comm/message/end.h"

typedef enum {
    WM_STASH_NONE = 0, // matches
    WM_STASH_TAKEN,
    WM_STASH_COMES, // is the receive's, which asks again
} wm_stash_t;

// Puts back what end->packet holds, from end->op.result's source and tag.
// False when memory is exhausted.
bool
wm_stash_put(wm_end_t *end);

// Takes the first message that the receive matches into end->packet and
// end->op.result: a wm_stash_t, or MPI's error.
WM_MUST_CHECK int
wm_stash_take(wm_end_t *end, wm_error_t *err);

// A receive that was given to MPI without the lock in between: what has been
// put here since is its own first.
void
wm_stash_look_again(wm_end_t *end);

// The receive does not want what comes for it.
void
wm_stash_let_go(const wm_end_t *end);

// Whether a message from `rank` with `tag` (or the wildcards) has come, in
// *found (else NULL), and *result: of those here, else of those that MPI
// holds, and then it is put here, with all that came before it.
WM_MUST_CHECK int
wm_stash_probe(wm_comm_t *comm, int rank, int tag, wm_stashed_t **found,
               wm_result_t *result, wm_error_t *err);

// Takes that message out of the stash, for a receive of its own
// (wm_envelope_t.matched); wm_matched_return puts it back where it was.
void
wm_stash_remove(wm_comm_t *comm, wm_stashed_t *entry);

// Reads a removed message into end->packet and end->op.result, and frees it.
void
wm_stash_open(wm_end_t *end, wm_stashed_t *entry);

// What has come and no receive that was begun matches, in the order it came:
// how many, and `most` of them. MPI is asked for as many, which are then here.
int
wm_stash_list(wm_comm_t *comm, wm_result_t *list, int most);

void
wm_stash_free(wm_comm_t *comm);

#endif
