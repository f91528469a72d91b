// SPDX-License-Identifier: BSD-3-Clause
// The end of a communicator, or of all: what is under way is waited for, or
// given up, and said to be. Engine lock not held, GIL released.
#ifndef WM_COMM_DRAIN_H
#define WM_COMM_DRAIN_H

#include "comm/comm.h"

// Ends what can be ended on a communicator (NULL: on all): sends are given
// some seconds, receives that nobody matched are cancelled. Whether nothing
// is left.
bool
wm_drain(const wm_comm_t *comm);

#endif
