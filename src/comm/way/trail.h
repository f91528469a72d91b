// SPDX-License-Identifier: BSD-3-Clause
// Packets of short messages whose sends have returned, and which MPI still
// reads. They are followed in the order in which they were sent, by one
// operation a communicator while there are any. Engine lock held.
#ifndef WM_COMM_WAY_TRAIL_H
#define WM_COMM_WAY_TRAIL_H

#include "comm/message/p2p.h"

// Takes over request and packet; false, and takes neither, where there are
// many already, or no memory.
bool
wm_trail_add(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes,
             MPI_Request request, char *packet);

#endif
