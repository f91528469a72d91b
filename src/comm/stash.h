// SPDX-License-Identifier: BSD-3-Clause
// Messages that MPI has matched with a receive that was then interrupted, or
// with a probe: only their header has been read, and the next receive that
// matches takes it before MPI is asked. In the order they came. Engine lock
// held.
#ifndef WM_COMM_STASH_H
#define WM_COMM_STASH_H

#include "comm/op.h"

// Puts back what op->packet holds, from op->result's source and tag; `first`
// where it had been taken out of the stash. False when memory is exhausted.
bool
wm_stash_put(wm_op_t *op, bool first);

// Takes the first message that the receive matches into op->packet and
// op->result; false where there is none.
bool
wm_stash_take(wm_op_t *op);

// Whether a message from `rank` with `tag` (or the wildcards) has come, in
// *found (else NULL), and *result: of those here, else of those that MPI
// holds, and then it is put here.
WM_MUST_CHECK int
wm_stash_probe(wm_comm_t *comm, int rank, int tag, wm_stashed_t **found,
               wm_result_t *result, wm_error_t *err);

// Takes that message out of the stash, for a receive of its own
// (wm_envelope_t.matched), and puts it back as the first.
void
wm_stash_remove(wm_comm_t *comm, wm_stashed_t *entry);
void
wm_stash_return(wm_comm_t *comm, wm_stashed_t *entry);

// Reads a removed message into op->packet and op->result, and frees it.
void
wm_stash_open(wm_op_t *op, wm_stashed_t *entry);

// What has come and no receive that was begun matches, in the order it came:
// how many, and `most` of them. MPI is asked for as many, which are then here.
int
wm_stash_list(wm_comm_t *comm, wm_result_t *list, int most);

void
wm_stash_free(wm_comm_t *comm);

#endif
