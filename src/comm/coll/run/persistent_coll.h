// SPDX-License-Identifier: BSD-3-Clause
// Persistent collectives: each is started many times, as a nonblocking one
// (nonblocking.h). MPI lets ranks start the persistent calls of a communicator
// in different orders. So each gets a communicator of its own, which all ranks
// make together with the call. Engine lock not held; GIL released by the
// caller.
#ifndef WM_COMM_COLL_RUN_PERSISTENT_COLL_H
#define WM_COMM_COLL_RUN_PERSISTENT_COLL_H

#include "comm/coll/run/coll.h"

// Returns the bits of the engines besides MPI that can serve this rank in a
// call; NULL: none can.
unsigned
wm_persistent_coll_engines(wm_comm_t *comm, const wm_coll_t *call);

// Makes the communicator of a persistent call; collective. `asked` is NULL if
// only mpi4py can read the arguments. `engines`: as
// wm_persistent_coll_engines() has told. WM_COLL_DONE: an engine besides
// MPI serves all ranks, or `always` is set; then *own is on *handle, which the
// caller closes. WM_COLL_BY_MPI: none does, or few barrier slots are left; the
// caller makes MPI's own call on `comm`, whose refusal it reports by
// wm_coll_refused(). `failed` is 0, or the error of this
// rank when it read its arguments; then all ranks raise. `any_device`: a
// buffer is GPU memory, which may not be staged (coll_require.h).
WM_MUST_CHECK wm_coll_result_t
wm_persistent_coll_open(wm_comm_t *comm, wm_coll_kind_t kind,
                        const wm_coll_t *asked, unsigned engines, int failed,
                        bool any_device, bool always, wm_comm_t **own,
                        MPI_Comm *handle, wm_error_t *err);

// Closes the communicator; each rank calls it at any time. `last` is a call
// that may still be under way, or NULL; it ends by itself. Takes over that
// reference.
void
wm_persistent_coll_close(wm_comm_t *own, MPI_Comm handle, wm_op_t *last);

#endif
