// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/packet.h"

#include "comm/engine/pool.h"

static wm_pool_t packet_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = WM_PACKET_ROOM,
};

char *
wm_packet_take(void)
{
    return wm_pool_take(&packet_pool);
}

void
wm_packet_give(char *packet)
{
    wm_pool_give(&packet_pool, packet);
}
