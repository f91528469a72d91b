// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/sharers.h"

#include <stdlib.h>
#include <string.h>

#include "comm/node/local_peers.h"

#define SEVERAL UINT64_MAX // GPUs

static bool
is_in_group(const wm_peer_t *peer, wm_peer_t *const *group, int size)
{
    for (int i = 0; i < size; ++i)
        if (group[i] == peer)
            return true;
    return false;
}

int
wm_sharers_launched(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (text == NULL)
        text = getenv("MPI_LOCALNRANKS");
    return text != NULL ? atoi(text) : 0;
}

int
wm_sharers_besides(const wm_device_t *device, wm_peer_t *const *group,
                   int size)
{
    _Atomic uint64_t *own = &wm_node_self()->segment->waits_on;
    uint64_t gpu, before = atomic_load(own);
    memcpy(&gpu, &device->uuid, sizeof gpu);
    atomic_store(own, before == 0 || before == gpu ? gpu : SEVERAL);
    if (!device->mps)
        return 0;
    int known = wm_node_machine_peers(), launched = wm_sharers_launched();
    int count = launched > known ? launched - known : 0;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL; peer = peer->next) {
        if (!peer->same_machine || peer->self || peer->dead
            || is_in_group(peer, group, size))
            continue;
        uint64_t its = peer->segment != NULL
                           ? atomic_load(&peer->segment->waits_on)
                           : 0;
        count += its == 0 || its == gpu || its == SEVERAL;
    }
    return count;
}
