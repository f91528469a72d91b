// SPDX-License-Identifier: BSD-3-Clause
// The links from GPU to GPU on one host. One end copies between the two
// arrays, as CUDA IPC has mapped the peer's memory into its process. A rank
// needs no mapping for messages to itself.
#include "comm/link/link.h"

static bool
self_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)into;
    *reason = "the peer is this process; one copy";
    return peer->self;
}

static int
self_import(wm_peer_t *peer, const wm_rkey_t *place, int theirs, int device,
            wm_mapping_t **mapping, char **at, wm_error_t *err)
{
    wm_pointer_t memory;
    (void)peer, (void)mapping;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): our own address
    char *from = (char *)(uintptr_t)place->address;
    if (device != theirs) {
        int code = wm_pointer_describe(from, &memory, err);
        if (code < 0)
            return code;
        if (!wm_memory_is_reached(&memory, device))
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "memory of cuda:%d that cuda:%d does not "
                                "reach",
                                theirs, device);
    }
    *at = from;
    return 0;
}

static bool
ipc_reach(const wm_peer_t *peer, const wm_pointer_t *into, const char **reason)
{
    bool reaches = false;
    if (peer->self)
        *reason = "the peer is this process";
    else if (!wm_node_shares(peer))
        *reason = peer->refused[WM_LINK_host];
    else if (peer->refused[WM_LINK_ipc] != NULL)
        *reason = peer->refused[WM_LINK_ipc];
    else if (!wm_memory_on_device(into))
        *reason = "the receive buffer is host memory";
    else if (into->device < 0)
        *reason = "the receive buffer lies on no GPU now";
    else {
        *reason = "both GPUs are on this host; one end copies directly "
                  "between the two arrays, through CUDA IPC";
        reaches = true;
    }
    return reaches;
}

static int
ipc_import(wm_peer_t *peer, const wm_rkey_t *place, int theirs, int device,
           wm_mapping_t **mapping, char **at, wm_error_t *err)
{
    (void)theirs;
    return wm_mapping_reach(peer, place, device, mapping, at, err);
}

const wm_link_t wm_link_self = {
    .name = "self",
    .how = "one copy",
    .reach = self_reach,
    .import = self_import,
};

const wm_link_t wm_link_ipc = {
    .name = "ipc",
    .reach = ipc_reach,
    .import = ipc_import,
};
