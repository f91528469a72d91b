// SPDX-License-Identifier: BSD-3-Clause
#include "comm/bounds.h"

#include "comm/pieces.h"

static bool
is_sound_payload(const wm_op_t *op)
{
    const wm_header_t *header = &op->header;
    return header->chunk > 0 && header->chunk <= WM_CARRIED_BYTES
           && header->nbytes > 0
           && (header->nbytes - 1) / header->chunk < INT32_MAX
           && header->seq <= (uint32_t)wm_comm_last_number(op->comm);
}

// One piece that is the message, or a ring of several.
static bool
is_sound_offer(const wm_header_t *header)
{
    uint64_t nbytes = header->nbytes, piece = header->piece;
    if (nbytes == 0 || (header->flag != 0 && nbytes > WM_MAIL_BYTES))
        return false;
    if (header->pieces == 1)
        return header->ring == 1 && piece == nbytes && !header->ramped;
    return header->ramped && header->flag == 0 && header->ring > 0
           && piece >= 4 && piece < nbytes && nbytes / piece < INT32_MAX
           && header->pieces == wm_pieces_count_ramped(nbytes, piece);
}

static bool
find_slot(wm_op_t *op)
{
    int32_t slot = op->header.slot;
    if (op->peer->segment == NULL || slot < 0 || slot >= WM_SLOTS)
        return false;
    op->slot = &op->peer->segment->slots[slot];
    return true;
}

static bool
is_sound(wm_op_t *op)
{
    const wm_header_t *header = &op->header;
    if (header->token > (uint32_t)wm_comm_last_number(op->comm) + 1)
        return false;
    if (header->failed)
        return true;
    switch (header->kind) {
    case WM_MESSAGE_EAGER:
        return header->nbytes <= WM_EAGER_BYTES;
    case WM_MESSAGE_DATA:
        return is_sound_payload(op);
    case WM_MESSAGE_OFFER:
        return find_slot(op) && is_sound_offer(header);
    default:
        return false;
    }
}

int
wm_bounds_check_header(wm_op_t *op, wm_error_t *err)
{
    if (is_sound(op))
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the header of a message from rank %d is damaged",
                        op->result.source);
}

int
wm_bounds_check_lane(const wm_op_t *op, uint32_t lane, uint32_t piece,
                     wm_error_t *err)
{
    if (lane < WM_LANES && piece > 0 && piece <= WM_PIECE_BYTES
        && (op->header.nbytes - 1) / piece < INT32_MAX)
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the shared segment of rank %d is damaged",
                        op->result.source);
}
