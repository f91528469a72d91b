// SPDX-License-Identifier: BSD-3-Clause
// Collectives of GPU memory that other GPUs cannot reach, or that cannot be
// exported. They are collectives on a stream (comm/coll/stream/stream_coll.h)
// of ours, for which we wait. GIL released by the caller, engine lock not
// held.
#ifndef WM_COMM_COLL_STREAM_SYMM_COLL_H
#define WM_COMM_COLL_STREAM_SYMM_COLL_H

#include "comm/coll/call/call.h"

// Returns true if such a collective is possible, as far as this rank knows.
bool
wm_symm_coll_serves(const wm_comm_t *comm, const wm_coll_t *call);

// Does the collective. Called by all ranks, after they have exchanged that
// they can and give the same arguments. `wrong` is an error that only this
// rank has found (code 0: none). If one rank fails, all raise.
WM_MUST_CHECK int
wm_symm_coll_call(wm_comm_t *comm, const wm_coll_t *call,
                  const wm_error_t *wrong, wm_error_t *err);

#endif
