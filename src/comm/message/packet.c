// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/packet.h"

#include "comm/engine/pool.h"

#define BYTES (WM_PACKET_BYTES + WM_STATUS_BYTES)

static wm_pool_t packet_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = BYTES,
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

int
wm_packet_take_pinned(char **packet, wm_error_t *err)
{
    return wm_pinned_alloc(BYTES, (void **)packet, err);
}

void
wm_packet_give_pinned(char *packet)
{
    wm_pinned_free(packet);
}
