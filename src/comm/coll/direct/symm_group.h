// SPDX-License-Identifier: BSD-3-Clause
// The ranks of a communicator on one host, as a group that makes symmetric
// memory (node/symm_memory.h): they exchange data by preflights.
#ifndef WM_COMM_COLL_DIRECT_SYMM_GROUP_H
#define WM_COMM_COLL_DIRECT_SYMM_GROUP_H

#include "comm/comm/comm.h"
#include "comm/node/symm_memory.h"

// Returns the group. It borrows the communicator, which has a barrier, and the
// name of the call, for errors. `least`: bytes that each rank has at least.
wm_symm_group_t
wm_symm_group_of(wm_comm_t *comm, const char *call, size_t least);

#endif
