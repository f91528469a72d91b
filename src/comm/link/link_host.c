// SPDX-License-Identifier: BSD-3-Clause
// The link through the host. Where a segment is shared, the sender fills a
// ring of page-locked memory in it while the receiver empties the ring
// (staging_ring.c). Without one (other hosts) both ends stage the chunks that
// a link carries (chunks.c).
#include "comm/link/link.h"

#include <string.h>

static bool
host_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)peer, (void)into;
    *reason = "GPU data is staged through page-locked memory";
    return true;
}

// Peers open the segment by a number in the table of files of its owner.
static size_t
host_address(void *into, size_t room)
{
    int32_t number = wm_node_segment_number();
    if (room >= sizeof number)
        memcpy(into, &number, sizeof number);
    return sizeof number;
}

static int
host_connect(wm_peer_t *peer, const void *address, size_t nbytes,
             wm_error_t *err)
{
    int32_t number;
    if (nbytes != sizeof number)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the address of the peer's shared segment is "
                            "damaged");
    memcpy(&number, address, sizeof number);
    return wm_node_open_segment(peer, number, err);
}

static void
host_disconnect(wm_peer_t *peer)
{
    wm_node_close_segment(peer);
    wm_peer_refuse(peer, WM_LINK_host,
                   "the peer cannot open the shared segment of this process");
}

const wm_link_t wm_link_host = {
    .name = "host",
    .how = "staged through page-locked memory",
    .address = host_address,
    .connect = host_connect,
    .disconnect = host_disconnect,
    .reach = host_reach,
};
