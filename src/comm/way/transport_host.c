// SPDX-License-Identifier: BSD-3-Clause
// Through the host: the sender fills a ring of page-locked shared memory that
// the receiver empties, both at once. Serves wherever a segment is shared;
// without one (other hosts) the sender never offers, and the payload goes
// through MPI (payload.c).
#include "comm/engine/stats.h"
#include "comm/message/bounds.h"
#include "comm/way/transport.h"
#include "cuda/word.h"

static bool
host_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)peer, (void)into;
    *reason = "staged in page-locked host memory";
    return true;
}

// The payload goes the way it goes to other hosts: the slot is no more needed.
static int
follow_to_mpi(wm_end_t *end, const wm_slot_staging_t *staging, wm_error_t *err)
{
    end->header.kind = WM_MESSAGE_DATA;
    end->header.seq = staging->seq;
    end->header.chunk = staging->piece;
    int code = wm_bounds_check_header(end, err);
    if (code < 0)
        return code;
    wm_slot_set_taken(end->slot, staging->taken_base + 1);
    end->slot = NULL;
    return 0;
}

// Asks the sender to stage. Until it has, there are no pieces.
static int
host_accept(wm_end_t *end, wm_error_t *err)
{
    wm_slot_t *slot = end->slot;
    wm_slot_answer_host(slot);
    if (!atomic_load(&slot->staged))
        return 1; // not yet
    wm_slot_staging_t staging = slot->staging;
    uint32_t lane = staging.lane, piece = staging.piece;
    if (lane == WM_LANE_OF_MPI)
        return follow_to_mpi(end, &staging, err);
    bool device = wm_buffer_on_device(&end->buffer);
    int code = wm_bounds_check_lane(end, lane, piece, err);
    if (code < 0)
        return code;
    if (device) {
        code = wm_node_register(end->peer, true, end->access.device, err);
        if (code < 0)
            return code;
    }
    end->pieces = (wm_pieces_t){
        .remote = wm_lane_pointer(end->peer, (int)lane),
        .piece = piece,
        .pieces = (uint32_t)((end->header.nbytes + piece - 1) / piece),
        .ring = WM_LANE_PIECES,
        .ready_base = staging.ready_base,
        .taken_base = staging.taken_base,
        .on_host = !device,
    };
    return 0;
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
    .accept = host_accept,
    .count = host_count,
};
