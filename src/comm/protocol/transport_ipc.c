// SPDX-License-Identifier: BSD-3-Clause
// The transports from GPU to GPU on one host. The receiver copies from the
// sender's memory, which CUDA IPC maps into its process (or the sender into
// the receiver's: push.c). A rank needs no mapping for messages to itself.
#include "array/eager_ll.h"
#include "comm/engine/stats.h"
#include "comm/node/mapping.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/transport.h"

static bool
self_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)into;
    *reason = "the peer is this process; one copy";
    return peer->self;
}

static int
self_accept(wm_end_t *end, wm_error_t *err)
{
    wm_pointer_t memory;
    if (!wm_buffer_on_device(&end->buffer))
        end->access.device = end->header.device;
    // Only its own device reaches memory of a pool or of VMM, unless its owner
    // has opened it to others.
    if (end->access.device != end->header.device) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): our own address
        const void *from = (const void *)(uintptr_t)end->header.place.address;
        int code = wm_pointer_describe(from, &memory, err);
        if (code < 0)
            return code;
        if (!memory.exportable && memory.kind == WM_MEMORY_DEVICE)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "memory of cuda:%d that cuda:%d does not "
                                "reach",
                                end->header.device, end->access.device);
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): our own address
    wm_fragments_set(end, (char *)(uintptr_t)end->header.place.address);
    return 0;
}

static void
self_count(const wm_end_t *end)
{
    wm_stat_add(WM_STAT_self_messages, 1);
    wm_stat_add(WM_STAT_self_bytes, (int64_t)end->header.nbytes);
}

static bool
ipc_reach(const wm_peer_t *peer, const wm_pointer_t *into, const char **reason)
{
    bool reaches = false;
    if (peer->self)
        *reason = "the peer is this process";
    else if (peer->segment == NULL || peer->ipc_refused)
        *reason = peer->reason;
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
ipc_accept(wm_end_t *end, wm_error_t *err)
{
    int device = end->buffer.memory.device;
    const wm_header_t *header = &end->header;
    uint64_t nbytes = header->flag != 0 ? WM_EAGER_LL_BUFFER_BYTES
                                        : header->fragment * header->ring;
    if (!wm_place_holds(&header->place, nbytes))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the header of the message names bytes outside "
                            "the sender's memory");
    int code = wm_mapping_reach(end->peer, &end->header.place, device,
                                &end->mapping, err);
    if (code < 0)
        return code;
    wm_fragments_set(end, wm_mapping_at(end->mapping, &end->header.place));
    return 0;
}

static void
ipc_count(const wm_end_t *end)
{
    wm_stat_add(WM_STAT_ipc_messages, 1);
    wm_stat_add(WM_STAT_ipc_bytes, (int64_t)end->header.nbytes);
}

const wm_transport_t wm_transport_self = {
    .name = "self",
    .mapped = true,
    .reach = self_reach,
    .accept = self_accept,
    .count = self_count,
};

const wm_transport_t wm_transport_ipc = {
    .name = "ipc",
    .mapped = true,
    .reach = ipc_reach,
    .accept = ipc_accept,
    .count = ipc_count,
};
