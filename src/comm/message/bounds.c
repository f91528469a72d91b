// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/bounds.h"

#include "comm/message/element.h"
#include "comm/way/pieces.h"

static bool
is_sound_payload(const wm_end_t *end)
{
    const wm_header_t *header = &end->header;
    return header->chunk > 0 && header->chunk <= WM_CARRIED_BYTES
           && header->nbytes > 0
           && (header->nbytes - 1) / header->chunk < INT32_MAX
           && header->seq <= (uint32_t)wm_comm_last_number(end->op.comm);
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
find_slot(wm_end_t *end)
{
    int32_t slot = end->header.slot;
    if (end->peer->segment == NULL || slot < 0 || slot >= WM_SLOTS)
        return false;
    end->slot = &end->peer->segment->slots[slot];
    return true;
}

static bool
is_sound(wm_end_t *end)
{
    const wm_header_t *header = &end->header;
    if (header->token > (uint32_t)wm_comm_last_number(end->op.comm) + 1)
        return false;
    if (header->failed)
        return true;
    switch (header->kind) {
    case WM_MESSAGE_EAGER:
        return header->nbytes <= WM_EAGER_BYTES;
    case WM_MESSAGE_DATA:
        return is_sound_payload(end);
    case WM_MESSAGE_OFFER:
        return find_slot(end) && is_sound_offer(header);
    default:
        return false;
    }
}

int
wm_bounds_check_header(wm_end_t *end, wm_error_t *err)
{
    if (is_sound(end))
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the header of a message from rank %d is damaged",
                        end->op.result.source);
}

int
wm_bounds_check_lane(const wm_end_t *end, uint32_t lane, uint32_t piece,
                     wm_error_t *err)
{
    if (lane < WM_LANES && piece > 0 && piece <= WM_PIECE_BYTES
        && (end->header.nbytes - 1) / piece < INT32_MAX)
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the shared segment of rank %d is damaged",
                        end->op.result.source);
}

bool
wm_bounds_refuse(const wm_end_t *end, wm_error_t *err)
{
    int sent = end->header.element, element = end->buffer.element;
    bool pickle = end->header.pickled && end->buffer.numbers;
    bool differ = sent != 0 && element != 0 && sent != element;
    if (pickle)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "Recv met send: rank %d sent a pickled object; receive "
                     "it by recv, or its bytes into a bytearray",
                     end->op.result.source);
    else if (differ)
        wm_error_set(err, WM_ERR_TYPE, 0,
                     "rank %d sent %llu of %s, the receive is of %llu of %s; "
                     "give both the same element type",
                     end->op.result.source,
                     wm_element_count(sent, end->header.nbytes),
                     wm_element_name(sent),
                     wm_element_count(element, end->buffer.nbytes),
                     wm_element_name(element));
    return pickle || differ;
}
