// SPDX-License-Identifier: BSD-3-Clause
// Aborts: a kernel that waits for another rank's kernel learns here that this
// rank has ended or aborted its call.
#ifndef WM_KERNELS_ABORT_H
#define WM_KERNELS_ABORT_H

#include "kernels/ll.h"
#include "kernels/peer_wait.h"

#define WM_LOOKS_OF_LONG (16 * WM_LOOKS) // multiples of it say that it waits

// Returns a rank's row. A few rows are kernel parameters and need no load; two
// returns keep the compiler from selecting an address.
WM_DEVICE wm_ll_rank_t
wm_rank_of(const wm_ll_rank_t *few, const wm_ll_rank_t *many, uint32_t size,
           uint32_t rank)
{
    if (size > WM_LL_FEW)
        return many[rank];
    return few[rank];
}

// Returns the sum of two ranks modulo `size`.
WM_DEVICE uint32_t
wm_rank_around(uint32_t sum, uint32_t size)
{
    return sum >= size ? sum - size : sum;
}

// Returns true, at some of the looks, if a rank's data either are there or
// will never be. The word is in host memory, and many threads ask. A kernel
// publishes its end without a fence, which would cost each call more than a
// microsecond, so its data may arrive behind the word, by as much.
//
// In a graph all ranks share the abort flag, and `base` is the rank. Behind
// the flag are the words `awaited` and `awaited_in`, by which the host learns
// of long waits, and of the number of the graph's capture.
WM_DEVICE bool
wm_peer_has_ended(const wm_ll_rank_t &its, uint32_t past, uint32_t capture,
                  uint32_t looks)
{
    if (looks % WM_LOOKS != 0)
        return false;
    if ((int32_t)(wm_load_system(its.word) - its.base - past) < 0) {
        if ((past & WM_LL_IN_GRAPH) != 0 && looks % WM_LOOKS_OF_LONG == 0) {
            wm_store_system((uint32_t *)its.word + 2, capture);
            wm_store_system((uint32_t *)its.word + 1,
                            looks / WM_LOOKS_OF_LONG << WM_AWAITED_BITS
                                | (its.base + 1));
        }
        return false;
    }
    wm_linger();
    wm_fence_system();
    return true;
}

// Aborts this rank's part of a call after a wait in vain: sets the word to
// `left`, the value before that of the call's end, so that peers stop waiting
// for this rank. Its kernel goes on. `word` NULL: the peers see the cause
// themselves.
WM_DEVICE void
wm_abort_call(uint32_t *word, uint32_t left)
{
    if (word != nullptr)
        wm_store_system(word, left);
}

// Raises the word to `value`, unless another block of this call left a higher
// value there.
WM_DEVICE void
wm_raise_word(uint32_t *word, uint32_t value)
{
    if ((int32_t)(wm_load_system(word) - value) < 0)
        wm_store_system(word, value);
}

#endif
