// SPDX-License-Identifier: BSD-3-Clause
// The link through the host. Where a segment is shared, the sender fills a
// ring of page-locked memory in it while the receiver empties the ring
// (staging_ring.c). Without one (other hosts) both ends stage the chunks that
// MPI carries (chunks.c).
#include "comm/link/link.h"

static bool
host_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)peer, (void)into;
    *reason = "GPU data is staged through page-locked memory";
    return true;
}

const wm_link_t wm_link_host = {
    WM_LINK_NAMED(host),
    .reach = host_reach,
};
