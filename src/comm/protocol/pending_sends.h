// SPDX-License-Identifier: BSD-3-Clause
// Pending sends: short messages whose sends have returned while MPI still
// reads their packets. While a communicator has any, one operation waits for
// them, in the order in which they were sent. Engine lock held.
#ifndef WM_COMM_PROTOCOL_PENDING_SENDS_H
#define WM_COMM_PROTOCOL_PENDING_SENDS_H

#include "comm/message/p2p.h"

// Adds a send, and takes over its request and packet. Returns false, and takes
// neither, if there are many already, or no memory.
bool
wm_pending_sends_add(wm_comm_t *comm, const wm_envelope_t *envelope,
                     size_t nbytes, MPI_Request request, char *packet);

#endif
