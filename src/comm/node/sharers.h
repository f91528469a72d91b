// SPDX-License-Identifier: BSD-3-Clause
// The processes of this host that share a GPU. Kernels that wait for those of
// other processes must all run at once, so each process has a share.
#ifndef WM_COMM_NODE_SHARERS_H
#define WM_COMM_NODE_SHARERS_H

#include "comm/node/node.h"

// Publishes that kernels of this process wait for others' on the GPU. Returns
// how many other processes of this host may have such kernels there, those of
// `group` left out: all that use the GPU, or of which we know no GPU. 0
// without MPS, where processes have the GPU in turns. Engine lock held.
int
wm_sharers_besides(const wm_device_t *device, wm_peer_t *const *group,
                   int size);

// Returns how many processes of MPI_COMM_WORLD the launcher has started on
// this host, if it is Open MPI's, MPICH's or Intel's; 0: unknown. Any thread,
// without the lock.
int
wm_sharers_launched(void);

#endif
