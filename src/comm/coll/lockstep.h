// SPDX-License-Identifier: BSD-3-Clause
// Collectives on a stream, by all ranks in the same order: given to the stream
// at once, whose work they follow and come before; nobody waits on the host
// but the first of a communicator, in which all ranks meet. Where each rank
// has a GPU it is one kernel on each (comm/coll/by_kernels.h). Else each piece
// is copied into the slab of its rank, and once all streams have come so far
// the others copy or reduce it from there (comm/coll/slab.h). A stream that is
// being captured takes the call into its graph, once all ranks have told each
// other on the host that they capture the same (comm/coll/capture.h). GIL
// released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_LOCKSTEP_H
#define WM_COMM_COLL_LOCKSTEP_H

#include "comm/coll/coll.h"

// Begins it. `call` NULL: what this rank was asked for is wrong, and the
// others are to hear of it (`err` is written already). The buffers stay the
// caller's, and are in use until the stream has passed. Raises what was found
// wrong in earlier ones.
WM_MUST_CHECK int
wm_lockstep_call(wm_comm_t *comm, const wm_coll_t *call, int device,
                 CUstream stream, wm_error_t *err);

// Likewise, with an operation that ends when the stream has passed it, and one
// reference for the caller. Takes over `kept`, released at the end, unless it
// fails, as it does where the stream is being captured.
WM_MUST_CHECK int
wm_lockstep_begin(wm_comm_t *comm, const wm_coll_t *call, int device,
                  CUstream stream, wm_buffer_t *kept, wm_op_t **op,
                  wm_error_t *err);

#endif
