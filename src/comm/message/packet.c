// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/packet.h"

#include "comm/engine/pool.h"

static wm_pool_t packet_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = WM_PACKET_ROOM,
};

char *
wm_packet_get(void)
{
    return wm_pool_get(&packet_pool);
}

void
wm_packet_put(char *packet)
{
    wm_pool_put(&packet_pool, packet);
}
