// SPDX-License-Identifier: BSD-3-Clause
// The transport through the host: the sender fills a ring of page-locked
// shared memory while the receiver empties it. Serves if a segment is shared.
// Without one (other hosts) the sender never offers, and the payload goes
// through MPI (chunks.c).
#include "comm/engine/stats.h"
#include "comm/protocol/staging_ring.h"
#include "comm/protocol/transport.h"

static bool
host_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)peer, (void)into;
    *reason = "GPU data is staged through page-locked memory";
    return true;
}

static void
host_count(const wm_end_t *end)
{
    wm_stat_add(WM_STAT_host_messages, 1);
    wm_stat_add(WM_STAT_host_bytes, (int64_t)end->header.nbytes);
    if (wm_buffer_on_device(&end->buffer))
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)end->header.nbytes);
}

const wm_transport_t wm_transport_host = {
    .name = "host",
    .reach = host_reach,
    .accept = wm_staging_ring_accept,
    .count = host_count,
};
