// SPDX-License-Identifier: BSD-3-Clause
// Peers are found by their ids in a time that does not grow with their number,
// and those of this host come first in the list.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/node/local_peers.h"
#include "cuda/memory.h"

#define MANY 200000 // which take minutes, if each is compared with all

// What node.c needs of the rest.
void
wm_engine_lock(void)
{
}

void
wm_engine_unlock(void)
{
}

int
wm_host_register(int device, void *pointer, size_t nbytes, wm_error_t *err)
{
    (void)device, (void)pointer, (void)nbytes, (void)err;
    return 0;
}

const char *
wm_setting_text(wm_setting_t setting)
{
    (void)setting;
    return "this host";
}

// Makes the endpoint of process `number`; one in `local` is on this host.
static wm_endpoint_t
endpoint_of(const wm_endpoint_t *own, int number, int local)
{
    wm_endpoint_t made = *own;
    uint64_t id = 1 + (uint64_t)number * 0x9e3779b97f4a7c15ull;
    memset(made.id, 0, sizeof made.id);
    memcpy(made.id, &id, sizeof id);
    made.pid = number;
    if (number % local != 0)
        made.host[0] ^= 1;
    return made;
}

static void
check_list(int locals)
{
    int count = 0;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer)) {
        assert(peer->same_host);
        ++count;
    }
    assert(count == locals && wm_node_machine_peers() == locals);
    count = 0;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL; peer = peer->next)
        ++count;
    assert(count == MANY + 1);
}

// first: whether a peer of another host is met before this process is.
static void
check(bool first, int local)
{
    static wm_peer_t *found[MANY];
    wm_endpoint_t own, met;
    memset(&own, 0, sizeof own);
    if (first) {
        memset(own.host, 7, sizeof own.host);
        met = endpoint_of(&own, 1, 2);
        found[1] = wm_node_peer(&met);
    }
    wm_node_describe(&own);
    assert(!own.failed && wm_node_peer(&own) == wm_node_self());
    for (int time = 0; time < 2; ++time)
        for (int i = 0; i < MANY; ++i) {
            met = endpoint_of(&own, i, local);
            wm_peer_t *peer = wm_node_peer(&met);
            assert(peer != NULL && peer->pid == i);
            assert((time == 0 && !(first && i == 1)) || peer == found[i]);
            found[i] = peer;
        }
    check_list(1 + (MANY + local - 1) / local);
}

int
main(int count, char **words)
{
    (void)words;
    check(count > 1, 1000);
    return 0;
}
