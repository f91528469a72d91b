// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/staging.h"

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/pack.h"
#include "comm/way/payload.h"
#include "cuda/word.h"

// For how long nothing is taken out of any lane before others go round them.
#define STUCK_US 10000
#define LOOKS 16 // at words, before the clock, or the peer, is looked at

enum { NO_LANE = -1, LANES_STUCK = -2 };

static const wm_slot_t *users[WM_LANES]; // NULL: a free lane

static int
acquire_lane(const wm_slot_t *slot)
{
    static uint32_t seen; // taken out of the lanes, at `since`
    static int64_t since; // 0: a lane was free
    static unsigned looks;
    uint32_t taken = 0;
    for (int i = 0; i < WM_LANES; ++i) {
        if (users[i] == NULL) {
            users[i] = slot;
            since = 0;
            return i;
        }
        taken += atomic_load(&users[i]->taken);
    }
    if (++looks % LOOKS != 0)
        return NO_LANE;
    int64_t now = wm_engine_now();
    if (since == 0 || taken != seen) {
        seen = taken;
        since = now;
    }
    return now - since < STUCK_US ? NO_LANE : LANES_STUCK;
}

void
wm_staging_drop(wm_end_t *end)
{
    if (end->lane >= 0)
        users[end->lane] = NULL;
    end->lane = -1;
}

// Some eighth of the message a piece, so that both copies overlap.
static int
fill_lane(wm_end_t *end, wm_error_t *err)
{
    uint64_t piece = end->header.nbytes / 8;
    piece = piece < 131072 ? 131072 : piece;
    piece = piece > WM_PIECE_BYTES ? WM_PIECE_BYTES : (piece + 511) & ~511ull;
    end->pieces.remote = wm_lane_pointer(wm_node_self(), end->lane);
    end->pieces.piece = piece;
    end->pieces.pieces = (uint32_t)((end->header.nbytes + piece - 1) / piece);
    end->pieces.ring = WM_LANE_PIECES;
    int code = wm_node_register(wm_node_self(), true, end->access.device, err);
    if (code == 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)end->header.nbytes);
    return code;
}

// The receiver takes the slot's one piece, which is nothing, when it knows.
static void
give_to_mpi(wm_end_t *end)
{
    end->header.kind = WM_MESSAGE_DATA;
    end->header.seq = wm_comm_draw_lock_held(end->op.comm, end->rank, 1);
    end->header.chunk = wm_payload_chunk(end);
    end->pieces.pieces = 1;
}

int
wm_staging_begin(wm_end_t *end, wm_error_t *err)
{
    wm_slot_t *slot = end->slot;
    // What was promised so far must be there, or its late word would mislead.
    if (!wm_word_reached(&slot->ready,
                         end->pieces.ready_base + end->pieces.next))
        return WM_STAGING_WAITS;
    int lane = acquire_lane(slot), code = 0;
    if (lane == NO_LANE)
        return WM_STAGING_WAITS;
    end->lane = lane == LANES_STUCK ? -1 : lane;
    // Its buffer is no longer ours, or not in one piece.
    bool keeps_box = wm_end_posts(end) || atomic_load(&end->op.done)
                     || wm_pack_by_mail(end) != NULL;
    wm_access_settle(&end->access); // who wrote the buffer wrote `ready`
    if (end->box != NULL && !keeps_box) {
        wm_mailbox_release(end->box);
        end->box = NULL;
    }
    end->pieces = (wm_pieces_t){
        .ready_base = atomic_load(&slot->ready),
        .taken_base = atomic_load(&slot->taken),
    };
    if (end->lane < 0)
        give_to_mpi(end);
    else
        code = fill_lane(end, err);
    if (code < 0)
        return code;
    bool by_mpi = end->lane < 0;
    wm_slot_staging_t staging = {
        .lane = by_mpi ? WM_LANE_OF_MPI : (uint32_t)end->lane,
        .seq = by_mpi ? end->header.seq : 0,
        .piece = by_mpi ? end->header.chunk : (uint32_t)end->pieces.piece,
        .ready_base = end->pieces.ready_base,
        .taken_base = end->pieces.taken_base,
    };
    wm_slot_stage(slot, &staging);
    return by_mpi ? WM_STAGING_BY_MPI : WM_STAGING_BEGUN;
}

bool
wm_staging_is_by_mpi(const wm_end_t *end)
{
    return end->slot != NULL && end->header.kind == WM_MESSAGE_DATA;
}

int
wm_staging_send(wm_end_t *end, wm_error_t *err)
{
    int code = wm_payload_send(end, err);
    if (code <= 0
        || wm_word_reached(&end->slot->taken, end->pieces.taken_base + 1))
        return code;
    code = ++end->looks % LOOKS == 0
               ? wm_failure_look(end->op.comm, end->rank, err)
               : 0;
    if (code == 0 && atomic_load(&end->slot->answer) == WM_ANSWER_ERROR)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "the receiver, rank %d, failed: %.120s", end->rank,
                            end->slot->error);
    return code;
}
