// SPDX-License-Identifier: BSD-3-Clause
// Persistent collectives: each is begun many times, as a nonblocking one
// (nonblocking.h). MPI lets ranks start those of a communicator in different
// orders, so each has a communicator of its own, made when it is, by all
// ranks. Engine lock not held; GIL released by the caller.
#ifndef WM_COMM_COLL_PERSISTENT_COLL_H
#define WM_COMM_COLL_PERSISTENT_COLL_H

#include "comm/coll/coll.h"

// Collective. `call` is what this rank was asked for, NULL: what GPUs cannot
// do. 0 where all ranks' GPUs can, or, with `always`, in any case: *own is
// behind *handle, until that is closed. 1 where they cannot, or there are too
// many already: MPI's own is to be made on `comm`. `failed` is 0, or what CUDA
// failed with when this rank read its arguments, which is returned: then all
// raise, unless `always`, with which it is published at each start.
WM_MUST_CHECK int
wm_persistent_coll_open(wm_comm_t *comm, wm_call_kind_t kind,
                        const wm_coll_t *call, int failed, bool always,
                        wm_comm_t **own, MPI_Comm *handle, wm_error_t *err);

// By each rank when it likes. A call that is under way ends by itself: `last`
// is it, or NULL; the reference is taken over.
void
wm_persistent_coll_close(wm_comm_t *own, MPI_Comm handle, wm_op_t *last);

#endif
