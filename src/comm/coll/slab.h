// SPDX-License-Identifier: BSD-3-Clause
// Slabs: device memory of each rank of a communicator that all of its ranks
// have mapped, through which collectives on streams go, and words by which
// their streams meet. Calls are numbered, alike on all ranks, and so are a
// call's steps. A call's pieces take turns in the halves of a slab, beginning
// with the one of its number: a half is written again once all have met after
// they read it. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_SLAB_H
#define WM_COMM_COLL_SLAB_H

#include "comm/comm/comm.h"

#define WM_SLAB_HALF ((size_t)16 << 20)
#define WM_SLAB_STEPS 65000 // of a call, at most

// Makes those of a communicator, by all ranks: where one has failed (`code`),
// or cannot map another's memory, all raise, and may try again. They are for
// streams of one device.
WM_MUST_CHECK int
wm_slabs_make(wm_comm_t *comm, int device, int code, wm_error_t *err);

int
wm_slabs_device(const wm_slabs_t *slabs);

// Begins a call on a stream, behind the one before it. What a rank asks for
// must be alike on all; of kind WM_CALL_UNKNOWN it has failed. Raises, for
// good, where ranks have been found to differ, or one to have failed; after 0
// the slabs are the thread's alone until wm_slabs_end.
WM_MUST_CHECK int
wm_slabs_begin(wm_slabs_t *slabs, int kind, uint64_t asked, CUstream stream,
               wm_error_t *err);

// The half of `rank` that a piece of this call goes through.
char *
wm_slabs_at(wm_slabs_t *slabs, int rank, size_t piece);

// The stream tells that it has come to a step of the call, from 0 on, and
// waits until all have, or have ended it.
WM_MUST_CHECK int
wm_slabs_step(const wm_slabs_t *slabs, uint32_t step, wm_error_t *err);

// The stream tells that the call has ended; where it has failed (`code`) the
// others will raise. Returns that, or a failure of its own.
WM_MUST_CHECK int
wm_slabs_end(wm_slabs_t *slabs, int code, wm_error_t *err);

// When nobody uses the communicator any more. False where streams may yet come
// to them, as they wait for one that has gone: all is left as it is, and so
// must be the gates.
bool
wm_slabs_free(wm_slabs_t *slabs);

#endif
