// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/staging_ring.h"

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/protocol/chunks.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"

// Without progress in any staging ring for so long, payloads go by MPI.
#define STUCK_US 10000
#define LOOKS 16 // looks at words until we ask the clock, or the peer

enum { NO_RING = -1, RINGS_STUCK = -2 };

static const wm_slot_t *users[WM_STAGING_RINGS]; // NULL: the ring is free

static int
staging_ring_acquire(const wm_slot_t *slot)
{
    static uint32_t seen; // fragments taken from all rings at that time
    static int64_t since; // 0: a ring was free
    static unsigned looks;
    uint32_t taken = 0;
    for (int i = 0; i < WM_STAGING_RINGS; ++i) {
        if (users[i] == NULL) {
            users[i] = slot;
            since = 0;
            return i;
        }
        taken += atomic_load(&users[i]->taken);
    }
    if (++looks % LOOKS != 0)
        return NO_RING;
    int64_t now = wm_engine_now();
    if (since == 0 || taken != seen) {
        seen = taken;
        since = now;
    }
    return now - since < STUCK_US ? NO_RING : RINGS_STUCK;
}

// The number of the ring.
WM_STATE(int, ring_of, second_state)

static void
staging_ring_drop(wm_end_t *end)
{
    if (users[*ring_of(end)] == end->slot)
        users[*ring_of(end)] = NULL;
}

// Fills the fragments: each is about an eighth of the message, so that both
// copies overlap.
static int
staging_ring_fill(wm_end_t *end, wm_error_t *err)
{
    uint64_t fragment = end->header.nbytes / 8;
    fragment = fragment < 131072 ? 131072 : fragment;
    fragment = fragment > WM_FRAGMENT_BYTES ? WM_FRAGMENT_BYTES
                                            : (fragment + 511) & ~511ull;
    end->fragments.remote = wm_staging_ring_pointer(wm_node_self(),
                                                    *ring_of(end));
    end->fragments.nbytes = fragment;
    end->fragments.count = (uint32_t)((end->header.nbytes + fragment - 1)
                                      / fragment);
    end->fragments.ring = WM_STAGING_RING_FRAGMENTS;
    int code = wm_node_register(wm_node_self(), true, end->access.device, err);
    if (code == 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)end->header.nbytes);
    return code;
}

int
wm_staging_ring_begin(wm_end_t *end, wm_error_t *err)
{
    wm_slot_t *slot = end->slot;
    // All promised words must have come, as a late one would mislead.
    if (!wm_end_is_quiet(end))
        return 0;
    int ring = staging_ring_acquire(slot), code = 0;
    if (ring == NO_RING)
        return 0;
    bool by_mpi = ring == RINGS_STUCK;
    wm_offer_become(end,
                    by_mpi ? &wm_sending_by_mpi : &wm_sending_staging_ring,
                    by_mpi ? "all staging rings are in use"
                           : "the receiver asked to stage");
    // `ready`: all writes of the buffer have ended.
    wm_access_after_nothing(&end->access);
    end->fragments = (wm_fragments_t){
        .ready_base = atomic_load(&slot->ready),
        .taken_base = atomic_load(&slot->taken),
    };
    wm_slot_staging_t staging = {
        .ready_base = end->fragments.ready_base,
        .taken_base = end->fragments.taken_base,
    };
    if (by_mpi) { // the receiver takes one empty fragment
        wm_chunks_announce(end, &wm_link_mpi);
        end->fragments.count = 1;
        staging.ring = WM_STAGING_BY_MPI;
        staging.seq = end->header.seq;
        staging.fragment = end->header.chunk;
    }
    else {
        *ring_of(end) = ring;
        code = staging_ring_fill(end, err);
        staging.ring = (uint32_t)ring;
        staging.fragment = (uint32_t)end->fragments.nbytes;
    }
    if (code < 0)
        return code;
    wm_slot_stage(slot, &staging);
    return 1;
}

static int
staging_ring_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_look(end, err);
    if (code == 0)
        code = wm_handoff_feed(end, err);
    return code < 0 ? code : wm_offer_ended(end, false, err);
}

const wm_sending_t wm_sending_staging_ring = {
    .name = "staging ring",
    .step = staging_ring_step,
    .fail = wm_offer_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .drop = staging_ring_drop,
};

// Sends chunks. Returns 1 when all are sent and the receiver no longer needs
// the slot.
static int
staging_by_mpi_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_chunks_send(end, err);
    if (code <= 0 || wm_fragments_are_taken(end))
        return code;
    code = ++end->looks % LOOKS == 0
               ? wm_failure_look(end->op.comm, end->rank, err)
               : 0;
    return code < 0 ? code : wm_offer_look(end, err);
}

static bool
staging_by_mpi_heard(wm_end_t *end)
{
    if (wm_offer_is_abandoned(end))
        return true;
    return wm_chunks_are_sent(end)
           && (atomic_load(&end->slot->answer) == WM_ANSWER_ERROR
               || wm_fragments_are_taken(end));
}

const wm_sending_t wm_sending_by_mpi = {
    .name = "by MPI",
    .step = staging_by_mpi_step,
    .fail = wm_chunks_fail,
    .heard = staging_by_mpi_heard,
    .peer_died = wm_offer_peer_died,
    .asks = wm_chunks_asks,
    .mark = wm_chunks_mark,
    .drop = wm_chunks_drop,
};

static int
damaged(const wm_end_t *end, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the shared segment of rank %d is damaged",
                        end->op.result.source);
}

// Continues by MPI, as with other hosts: the slot is no longer needed.
static int
follow_to_mpi(wm_end_t *end, const wm_slot_staging_t *staging, wm_error_t *err)
{
    end->header.kind = WM_MESSAGE_DATA;
    end->header.link = WM_LINK_mpi;
    end->header.seq = staging->seq;
    end->header.chunk = staging->fragment;
    if (!wm_receiving_chunks.check(end))
        return wm_receive_damaged(end, err);
    wm_slot_set_taken(end->slot, staging->taken_base + 1);
    end->slot = NULL;
    return 0;
}

// Asks the sender to stage; before it does, there are no fragments.
int
wm_staging_ring_accept(wm_end_t *end, wm_error_t *err)
{
    wm_slot_t *slot = end->slot;
    wm_slot_answer_host(slot);
    if (!atomic_load(&slot->staged))
        return 1; // not yet
    wm_slot_staging_t staging = slot->staging;
    uint32_t ring = staging.ring, fragment = staging.fragment;
    if (ring == WM_STAGING_BY_MPI)
        return follow_to_mpi(end, &staging, err);
    if (ring >= WM_STAGING_RINGS || fragment == 0
        || fragment > WM_FRAGMENT_BYTES
        || (end->header.nbytes - 1) / fragment >= INT32_MAX)
        return damaged(end, err);
    bool device = wm_buffer_on_device(&end->buffer);
    if (device) {
        int code = wm_node_register(end->peer, true, end->access.device, err);
        if (code < 0)
            return code;
    }
    end->fragments = (wm_fragments_t){
        .remote = wm_staging_ring_pointer(end->peer, (int)ring),
        .nbytes = fragment,
        .count = (uint32_t)((end->header.nbytes + fragment - 1) / fragment),
        .ring = WM_STAGING_RING_FRAGMENTS,
        .ready_base = staging.ready_base,
        .taken_base = staging.taken_base,
        .on_host = !device,
    };
    return 0;
}
