// SPDX-License-Identifier: BSD-3-Clause
// Waits for operations under way at the end of a communicator, or of all, or
// abandons and reports them. Engine lock not held, GIL released.
#ifndef WM_COMM_DIAGNOSTICS_DRAIN_H
#define WM_COMM_DIAGNOSTICS_DRAIN_H

#include "comm/comm/comm.h"

// Ends all operations that can be ended: sends get some seconds, receives
// without a match are cancelled. Returns true if nothing is left.
bool
wm_drain_all(void);

// Gives the sends of a communicator, and matched messages, some seconds to
// end; not its receives and embedded arrays, which the program may wait for
// later.
void
wm_drain_sends(wm_comm_t *comm);

// Returns true if an operation is under way on a communicator. Lock held.
bool
wm_drain_is_used(const wm_comm_t *comm);

#endif
