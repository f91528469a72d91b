// SPDX-License-Identifier: BSD-3-Clause
// Waits for operations under way at the end of a communicator, or of all, or
// abandons and reports them. Engine lock not held, GIL released.
#ifndef WM_COMM_DIAGNOSTICS_DRAIN_H
#define WM_COMM_DIAGNOSTICS_DRAIN_H

#include "comm/comm/comm.h"

// Returns true if an operation is under way on a communicator. Lock held.
bool
wm_drain_is_used(const wm_comm_t *comm);

#endif
