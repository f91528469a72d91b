// SPDX-License-Identifier: BSD-3-Clause
// Short collectives that block: after all have agreed, one kernel on each GPU,
// which writes into the others' boxes and tells the host by a word that it has
// ended (comm/coll/by_kernels.h). No rank reads another's memory, so none is
// mapped; at the end all hear whether one has failed. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_BY_BOXES_H
#define WM_COMM_COLL_BY_BOXES_H

#include "comm/coll/coll.h"

// What a rank says of it.
typedef enum {
    WM_BOXES_NONE, // this call of this rank cannot
    WM_BOXES_OPEN, // it can
    WM_BOXES_UNTRIED,
} wm_boxes_state_t;

uint8_t
wm_by_boxes_state(const wm_comm_t *comm, const wm_coll_t *call,
                  const wm_native_t *native);

// After all have agreed on the call, and were found capable: 1 where it is to
// be done otherwise, on all ranks alike.
WM_MUST_CHECK int
wm_by_boxes_call(wm_comm_t *comm, const wm_coll_t *call, wm_native_t *native,
                 wm_error_t *err);

// At the end of a call that was done otherwise: opens boxes for those to come,
// where all ranks had none. Where that fails there are none.
void
wm_by_boxes_open(wm_comm_t *comm, const wm_native_t *native, bool untried);

// Whether all have said so.
bool
wm_by_boxes_are(const wm_native_t *native, wm_boxes_state_t state);

// NULL: nothing.
void
wm_by_boxes_free(wm_by_boxes_t *boxes);

#endif
