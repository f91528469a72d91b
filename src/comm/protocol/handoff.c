// SPDX-License-Identifier: BSD-3-Clause
// Device memory that CUDA IPC does not export goes through an exportable copy.
// For a long message the copy is a ring, which the sender fills fragment by
// fragment while the receiver empties it. Staging rings are filled here, too.
#include "comm/protocol/eager.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "cuda/word.h"

// Starting a copy costs 3 us or more for each fragment.
#define RING_FRAGMENT ((uint64_t)24 << 20)
#define RING_FRAGMENTS 3

// The exportable copy, or the ring.
WM_STATE(wm_block_t *, block_of, first_state)

static void
handoff_drop(wm_end_t *end)
{
    if (*block_of(end) != NULL)
        wm_block_free(*block_of(end), 0, NULL, NULL);
    *block_of(end) = NULL;
}

// Takes an exportable copy, or a ring.
static bool
handoff_try_take(wm_end_t *end, const char **why)
{
    bool in_ring = end->header.nbytes > 2 * RING_FRAGMENT;
    wm_block_t **block = block_of(end);
    wm_pointer_t memory;
    wm_error_t err;
    if (!wm_offer_open_mapped(end, why))
        return false;
    *why = "the memory can be exported itself";
    if (end->buffer.memory.exportable)
        return false;
    int code = wm_block_alloc(end->access.device,
                              in_ring ? RING_FRAGMENT * RING_FRAGMENTS
                                      : end->header.nbytes,
                              block, &err);
    if (code == 0) {
        wm_block_describe(*block, &memory);
        code = wm_offer_export(end, wm_block_pointer(*block), &memory, &err);
    }
    if (code < 0) {
        handoff_drop(end);
        *why = wm_offer_note(end, &err);
        return false;
    }
    return true;
}

static int
handoff_offer(wm_end_t *end, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    if (header->nbytes > 2 * RING_FRAGMENT) {
        header->fragment = RING_FRAGMENT;
        header->ring = RING_FRAGMENTS;
        header->ramped = 1;
        header->fragments = wm_fragments_count_ramped(header->nbytes,
                                                      RING_FRAGMENT);
    }
    wm_offer_hand_off(end, wm_block_pointer(*block_of(end)));
    return wm_offer_describe(end, WM_STAGE_NOT, err);
}

// Copies a fragment into the ring or the staging ring, then sets `ready`.
static int
feed_fragment(wm_end_t *end, uint32_t at, wm_error_t *err)
{
    wm_fragments_t *fragments = &end->fragments;
    char *into = fragments->remote + at % fragments->ring * fragments->nbytes;
    uint32_t ready = fragments->ready_base + at + 1;
    int code = end->taker->copy_out != NULL
                   ? end->taker->copy_out(end, into, ready, err)
                   : 0;
    if (code != 0)
        return code < 0 ? code : 0;
    code = wm_memory_copy(end->access.device, into,
                          end->buffer.data + wm_fragment_start(fragments, at),
                          wm_fragment_length(end, at), end->access.stream,
                          err);
    return code < 0 ? code
                    : wm_slot_enqueue_ready(end->slot, end->access.device,
                                            end->access.stream, ready, err);
}

int
wm_handoff_feed(wm_end_t *end, wm_error_t *err)
{
    wm_fragments_t *fragments = &end->fragments;
    while (fragments->next < fragments->count
           && (fragments->next < fragments->ring
               || wm_word_reached(&end->slot->taken, fragments->taken_base
                                                         + fragments->next + 1
                                                         - fragments->ring))) {
        int code = wm_end_open_stream(end, err);
        if (code == 0)
            code = feed_fragment(end, fragments->next, err);
        if (code < 0)
            return code;
        if (++fragments->next == 1)
            wm_offer_posted(end);
    }
    return 0;
}

// The data are a copy already.
static int
handoff_report_early(wm_end_t *end, wm_error_t *err)
{
    (void)err;
    if (!wm_offer_is_handed_off(end))
        return 0;
    // For the case that the host serves.
    end->buffer.data = wm_block_pointer(*block_of(end));
    wm_eager_report(end);
    return 0;
}

static int
handoff_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_begin_step(end, err);
    if (code == 0 && atomic_load(&end->slot->answer) != WM_ANSWER_HOST)
        code = wm_handoff_feed(end, err);
    return code < 0 ? code : wm_offer_end_step(end, err);
}

const wm_sending_t wm_sending_handoff = {
    .name = "hand-off",
    .try_take = handoff_try_take,
    .offer = handoff_offer,
    .go = wm_handoff_feed,
    .step = handoff_step,
    .report_early = handoff_report_early,
    .fail = wm_offer_fail_handed_off,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
    .drop = handoff_drop,
};
