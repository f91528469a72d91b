// SPDX-License-Identifier: BSD-3-Clause
// Functions that all kernels of the LL protocol share (kernels/ll.h): they
// find an LL buffer, wait until it may be written, and end an exchange.
#ifndef WM_KERNELS_LL_VIEW_H
#define WM_KERNELS_LL_VIEW_H

#include "kernels/ll.h"
#include "kernels/abort.h"

// An exchange, as all threads see it.
struct wm_ll_view {
    const wm_ll_params_t &p;
    uint32_t number;
};

WM_DEVICE wm_ll_view
ll_begin(const wm_ll_params_t &p)
{
    return {p, p.number != 0 ? p.number : WM_LL_NEXT(p.own->count)};
}

WM_DEVICE bool
is_of(const wm_ll_side_t &side, uint32_t rank)
{
    return rank - side.first < side.count;
}

WM_DEVICE uint64_t
block_at(const wm_ll_side_t &side, uint32_t rank)
{
    return side.at + (uint64_t)rank * side.step;
}

WM_DEVICE wm_ll_rank_t
rank_of(const wm_ll_view &view, uint32_t rank)
{
    const wm_ll_params_t &p = view.p;
    return wm_rank_of(p.few, p.own->ranks, p.size, rank);
}

WM_DEVICE wm_ll_head_t *
head_of(const wm_ll_view &view, uint32_t rank)
{
    return (wm_ll_head_t *)rank_of(view, rank).ll;
}

// Returns the LL buffer that `from` writes, in the memory of `to`.
WM_DEVICE char *
buffer_of(const wm_ll_view &view, uint32_t from, uint32_t to)
{
    const uint32_t others = view.p.size - 1;
    const uint32_t other = wm_rank_around(from + others - to, view.p.size);
    const uint32_t index = (view.number & 1) * others + other;
    return rank_of(view, to).ll + view.p.first
           + (size_t)index * view.p.buffer_bytes;
}

// Returns true, at some of the looks, if a rank's lines either are there or
// will never be.
WM_DEVICE bool
peer_has_ended(const wm_ll_view &view, uint32_t rank, uint32_t looks)
{
    return wm_peer_has_ended(rank_of(view, rank), view.p.past, view.p.done,
                             looks);
}

// Waits until rank `to` has read its LL buffer, which the exchange two before
// wrote, so that this exchange may write it. Returns false if `to` never will;
// then this rank sends nothing more. Each thread polls for itself, beside its
// loads: to wait for one polling thread costs more.
WM_DEVICE bool
await_room(const wm_ll_view &view, uint32_t to)
{
    const wm_ll_params_t &p = view.p;
    const uint32_t *done = &head_of(view, p.rank)->done[to];
    const uint32_t before = WM_LL_LAST_BUT_ONE(view.number);
    for (uint32_t looks = 1;; looks++) {
        if ((int32_t)(wm_load_system(done) - before) >= 0)
            return true;
        if (peer_has_ended(view, to, looks))
            break;
        wm_pause();
    }
    wm_abort_call(p.word, p.done - 1);
    return false;
}

// Ends an exchange: tells the other ranks that this rank has read all that
// they wrote for it.
WM_DEVICE void
ll_end(const wm_ll_view &view)
{
    const wm_ll_params_t &p = view.p;
    if (!wm_grid_ended(&p.own->blocks))
        return;
    for (uint32_t k = 1; k < p.size; k++) {
        const uint32_t to = wm_rank_around(p.rank + k, p.size);
        wm_store_system(&head_of(view, to)->done[p.rank], view.number);
    }
    if (p.number == 0)
        p.own->count = view.number;
    if (p.word != nullptr)
        wm_store_system(p.word, p.done);
}

#endif
