// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/pieces.h"

#include "array/eager_ll.h"
#include "cuda/word.h"

#define LOOKS 256 // at words, before the driver is asked for errors

uint32_t
wm_pieces_count_ramped(uint64_t nbytes, uint64_t piece)
{
    uint64_t short_ones = piece / 4 + piece / 2;
    return (uint32_t)(2 + (nbytes - short_ones + piece - 1) / piece);
}

// Where in the message a piece begins. The first ones of a ring are shorter:
// nothing can be taken before they are in it.
uint64_t
wm_piece_start(const wm_pieces_t *pieces, uint32_t index)
{
    uint64_t piece = pieces->piece;
    if (!pieces->ramped)
        return index * piece;
    return index == 0   ? 0
           : index == 1 ? piece / 4
                        : piece / 4 + piece / 2 + (index - 2) * piece;
}

uint64_t
wm_piece_length(const wm_end_t *end, uint32_t index)
{
    uint64_t until = wm_piece_start(&end->pieces, index + 1);
    return (until < end->header.nbytes ? until : end->header.nbytes)
           - wm_piece_start(&end->pieces, index);
}

void
wm_pieces_set(wm_end_t *end, char *remote)
{
    const wm_header_t *header = &end->header;
    end->pieces = (wm_pieces_t){
        .remote = remote,
        .piece = header->piece,
        .pieces = header->pieces,
        .ring = header->ring,
        .ramped = header->ramped,
        .ready_base = header->ready_base,
        .taken_base = header->taken_base,
    };
}

bool
wm_piece_is_ready(const wm_end_t *end, uint32_t index)
{
    return wm_word_reached(&end->slot->ready,
                           end->pieces.ready_base + index + 1);
}

bool
wm_pieces_are_ready(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->ready,
                           end->pieces.ready_base + end->pieces.next);
}

bool
wm_pieces_are_taken(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->taken,
                           end->pieces.taken_base + end->pieces.pieces);
}

_Atomic uint32_t *
wm_pieces_status(const wm_end_t *end)
{
    return (_Atomic uint32_t *)(end->packet + WM_PACKET_BYTES);
}

void
wm_pieces_launched(wm_end_t *end, const wm_error_t *failure)
{
    if (failure == NULL)
        return;
    wm_op_fail(&end->op, failure);
    atomic_store(wm_pieces_status(end), WM_EAGER_LL_FAILED);
}

int
wm_pieces_look_for_errors(wm_end_t *end, wm_error_t *err)
{
    bool unused;
    if (++end->asks % LOOKS != 0)
        return 0;
    if (!end->on_stream)
        return wm_stream_spin(end->access.device, end->access.stream, 1,
                              &unused, err);
    // The caller has gone on: only what is lost for good is to be told.
    int code = wm_event_done(end->access.user_device, end->event, &unused,
                             err);
    return code < 0
                   && wm_event_look_for_errors(end->access.user_device, NULL)
                          < 0
               ? code
               : 0;
}
