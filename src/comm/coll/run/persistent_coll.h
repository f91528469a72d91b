// SPDX-License-Identifier: BSD-3-Clause
// Persistent collectives: each is started many times, as a nonblocking one
// (nonblocking.h). MPI lets ranks start the persistent calls of a communicator
// in different orders. So each gets a communicator of its own, which all ranks
// make together with the call. Engine lock not held; GIL released by the
// caller.
#ifndef WM_COMM_COLL_RUN_PERSISTENT_COLL_H
#define WM_COMM_COLL_RUN_PERSISTENT_COLL_H

#include "comm/coll/run/coll.h"

// Returns true if this rank's GPU can do a call; NULL: it cannot.
bool
wm_persistent_coll_is_able(wm_comm_t *comm, const wm_coll_t *call);

// Makes the communicator of a persistent call; collective. `able`: as
// wm_persistent_coll_is_able() has told. Returns 0 if the GPUs of all
// ranks can do the call, or if `always` is set; then *own is on *handle, which
// the caller closes. Returns 1 if they cannot, or if few barrier slots are
// left: the caller makes MPI's own call on `comm`. `failed` is 0, or the error
// of this rank when it read its arguments; then all ranks raise.
WM_MUST_CHECK int
wm_persistent_coll_open(wm_comm_t *comm, wm_coll_kind_t kind, bool able,
                        int failed, bool always, wm_comm_t **own,
                        MPI_Comm *handle, wm_error_t *err);

// Called after wm_persistent_coll_open() has returned 1, if MPI has refused
// its own call on this rank: the call has not happened. The ranks have agreed
// that MPI does it, so the next one needs no agreement.
void
wm_persistent_coll_refused(wm_comm_t *comm);

// Closes the communicator; each rank calls it at any time. `last` is a call
// that may still be under way, or NULL; it ends by itself. Takes over that
// reference.
void
wm_persistent_coll_close(wm_comm_t *own, MPI_Comm handle, wm_op_t *last);

#endif
