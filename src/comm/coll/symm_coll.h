// SPDX-License-Identifier: BSD-3-Clause
// Collectives of GPU memory that the others' GPUs do not reach, or that cannot
// be exported: they go as those on a stream do (comm/coll/stream_coll.h), on
// one of ours, and are waited for. GIL released by the caller, engine lock not
// held.
#ifndef WM_COMM_COLL_SYMM_COLL_H
#define WM_COMM_COLL_SYMM_COLL_H

#include "comm/coll/coll.h"

// Whether it can, as far as this rank knows.
bool
wm_symm_coll_serves(const wm_comm_t *comm, const wm_coll_t *call);

// Called by all ranks, which have exchanged that they can, and give the same.
// `wrong` is what this rank alone finds wrong, code 0: nothing. Where one
// fails, all raise.
WM_MUST_CHECK int
wm_symm_coll_call(wm_comm_t *comm, const wm_coll_t *call,
                  const wm_error_t *wrong, wm_error_t *err);

#endif
