// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/fragments.h"

#include "array/eager_ll.h"
#include "cuda/word.h"

#define LOOKS 256 // looks at words until we ask the driver for errors

uint32_t
wm_fragments_count_ramped(uint64_t nbytes, uint64_t fragment)
{
    uint64_t short_ones = fragment / 4 + fragment / 2;
    return (uint32_t)(2 + (nbytes - short_ones + fragment - 1) / fragment);
}

// The first fragments of a ring are shorter, as nothing can be taken before a
// fragment is complete.
uint64_t
wm_fragment_start(const wm_fragments_t *fragments, uint32_t index)
{
    uint64_t fragment = fragments->nbytes;
    if (!fragments->ramped)
        return index * fragment;
    return index == 0   ? 0
           : index == 1 ? fragment / 4
                        : fragment / 4 + fragment / 2 + (index - 2) * fragment;
}

uint64_t
wm_fragment_length(const wm_end_t *end, uint32_t index)
{
    uint64_t until = wm_fragment_start(&end->fragments, index + 1);
    return (until < end->header.nbytes ? until : end->header.nbytes)
           - wm_fragment_start(&end->fragments, index);
}

void
wm_fragments_set(wm_end_t *end, char *remote)
{
    const wm_header_t *header = &end->header;
    end->fragments = (wm_fragments_t){
        .remote = remote,
        .nbytes = header->fragment,
        .count = header->fragments,
        .ring = header->ring,
        .ramped = header->ramped,
        .ready_base = header->ready_base,
        .taken_base = header->taken_base,
    };
}

bool
wm_fragment_is_ready(const wm_end_t *end, uint32_t index)
{
    return wm_word_reached(&end->slot->ready,
                           end->fragments.ready_base + index + 1);
}

bool
wm_fragments_are_taken(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->taken,
                           end->fragments.taken_base + end->fragments.count);
}

_Atomic uint32_t *
wm_fragments_status(const wm_end_t *end)
{
    return (_Atomic uint32_t *)(end->packet + WM_PACKET_BYTES);
}

void
wm_fragments_launched(wm_end_t *end, const wm_error_t *failure)
{
    if (failure == NULL)
        return;
    wm_op_fail(&end->op, failure);
    atomic_store(wm_fragments_status(end), WM_EAGER_LL_FAILED);
}

bool
wm_fragments_ask_driver(wm_end_t *end)
{
    return ++end->event_looks % LOOKS == 0;
}

int
wm_fragments_look_for_errors(wm_end_t *end, wm_error_t *err)
{
    bool unused;
    if (!wm_fragments_ask_driver(end))
        return 0;
    return wm_stream_spin(end->access.device, end->access.stream, 1, &unused,
                          err);
}
