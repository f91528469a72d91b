// SPDX-License-Identifier: BSD-3-Clause
// The peers on this host. Work that calls repeat is for these alone, since a
// job may have thousands on other hosts. Engine lock held.
#ifndef WM_COMM_NODE_LOCAL_PEERS_H
#define WM_COMM_NODE_LOCAL_PEERS_H

#include "comm/node/node.h"

// Returns the next peer on this host; NULL: none. wm_node_peers() is the
// first, if there is one.
static inline wm_peer_t *
wm_local_peers_next(const wm_peer_t *peer)
{
    return peer->next != NULL && peer->next->same_host ? peer->next : NULL;
}

// Returns the number of known processes on this machine, this one included,
// also of those in other containers: they share its cores and GPUs.
int
wm_node_machine_peers(void);

// Returns the number of those on this host alone, in one container.
int
wm_node_host_peers(void);

#endif
