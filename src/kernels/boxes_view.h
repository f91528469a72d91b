// SPDX-License-Identifier: BSD-3-Clause
// What kernels that go through boxes have in common.
#ifndef WM_KERNELS_BOXES_VIEW_H
#define WM_KERNELS_BOXES_VIEW_H

#include "kernels/boxes.h"
#include "kernels/gone.h"

// What is exchanged, as all threads see it.
struct wm_boxes_view {
    const wm_boxes_params_t &p;
    const wm_boxes_rank_t *ranks;
    uint32_t number;
};

WM_DEVICE wm_boxes_view
boxes_begin(const wm_boxes_params_t &p)
{
    const bool many = p.size > WM_BOXES_FEW;
    const wm_boxes_rank_t *ranks = many ? p.own->ranks : p.few;
    return {p, ranks, p.number != 0 ? p.number : WM_BOXES_NEXT(p.own->count)};
}

WM_DEVICE bool
is_of(const wm_boxes_side_t &side, uint32_t rank)
{
    return rank - side.first < side.count;
}

WM_DEVICE uint64_t
block_at(const wm_boxes_side_t &side, uint32_t rank)
{
    return side.at + (uint64_t)rank * side.step;
}

WM_DEVICE wm_boxes_head_t *
head_of(const wm_boxes_view &view, uint32_t rank)
{
    return (wm_boxes_head_t *)view.ranks[rank].boxes;
}

// The box that `from` writes in the memory of `to`.
WM_DEVICE char *
box_of(const wm_boxes_view &view, uint32_t from, uint32_t to)
{
    const uint32_t others = view.p.size - 1;
    const uint32_t other = (from + view.p.size - to - 1) % view.p.size;
    const uint32_t index = (view.number & 1) * others + other;
    return view.ranks[to].boxes + view.p.first
           + (size_t)index * view.p.box_bytes;
}

// Whether a rank's lines either are there or will never be, now and then.
WM_DEVICE bool
has_gone(const wm_boxes_view &view, uint32_t rank, uint32_t looks)
{
    return wm_has_gone(view.ranks[rank], view.p.past, looks);
}

WM_DEVICE bool
await_room_of(const wm_boxes_view &view, uint32_t to)
{
    const wm_boxes_head_t *head = head_of(view, view.p.rank);
    for (uint32_t looks = 1;; looks++) {
        const bool gone = has_gone(view, to, looks);
        const uint32_t done = wm_load_system(&head->done[to]);
        if ((int32_t)(done - (view.number - 2)) >= 0 || gone)
            return !gone;
        wm_pause();
    }
}

// The boxes that this exchange writes were read in the last but one; false
// where one will not be. All threads of a block come here, and one of them
// looks.
WM_DEVICE bool
await_room(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    bool room = true;
    for (uint32_t k = 1; k < p.size && wm_block_leads() && room; k++) {
        const uint32_t to = (p.rank + k) % p.size;
        if (is_of(p.gives, to))
            room = await_room_of(view, to);
    }
    if (!room)
        wm_give_up(p.word, p.done - 1);
    return wm_block_all(room);
}

// All that was for this rank has been taken out.
WM_DEVICE void
boxes_end(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    if (!wm_grid_ended(&p.own->blocks))
        return;
    for (uint32_t k = 1; k < p.size; k++) {
        const uint32_t to = (p.rank + k) % p.size;
        wm_store_system(&head_of(view, to)->done[p.rank], view.number);
    }
    if (p.number == 0)
        p.own->count = view.number;
    if (p.word != nullptr)
        wm_store_system(p.word, p.done);
}

#endif
