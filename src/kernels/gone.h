// SPDX-License-Identifier: BSD-3-Clause
// How a kernel that waits for another rank's learns that it waits in vain.
#ifndef WM_KERNELS_GONE_H
#define WM_KERNELS_GONE_H

#include "kernels/ll.h"
#include "kernels/peer_sync.h"

// In vain, before a thread looks at the others' words; on the host one thread
// waits in the place of all.
#ifdef __CUDACC__
#define WM_LOOKS 2048
#else
#define WM_LOOKS 1
#endif

// A few ranks are among what a kernel is given, where they cost no load: so
// each way has its own, and no address is chosen.
WM_DEVICE wm_ll_rank_t
wm_rank_of(const wm_ll_rank_t *few, const wm_ll_rank_t *many, uint32_t size,
           uint32_t rank)
{
    if (size > WM_LL_FEW)
        return many[rank];
    return few[rank];
}

// Of a sum of two ranks, the one it comes round to.
WM_DEVICE uint32_t
wm_rank_around(uint32_t sum, uint32_t size)
{
    return sum >= size ? sum - size : sum;
}

// Whether what a rank had to write either is there or will never be, now and
// then: the word is the host's, and many ask. A kernel that has come to its
// end tells it without a fence, which would cost each call more than a
// microsecond: so what it wrote may come behind the word, by as much.
WM_DEVICE bool
wm_has_gone(const wm_ll_rank_t &its, uint32_t past, uint32_t looks)
{
    if (looks % WM_LOOKS != 0
        || (int32_t)(wm_load_system(its.word) - its.base - past) < 0)
        return false;
    wm_linger();
    wm_fence_system();
    return true;
}

// This rank gives no more in this call, as it has waited in vain: its word is
// then the one before that of its end, and those who wait for it do not, while
// its kernel goes on. `word` NULL: they see why.
WM_DEVICE void
wm_give_up(uint32_t *word, uint32_t left)
{
    if (word != nullptr)
        wm_store_system(word, left);
}

// Not below what another block of this call left there.
WM_DEVICE void
wm_raise_word(uint32_t *word, uint32_t value)
{
    if ((int32_t)(wm_load_system(word) - value) < 0)
        wm_store_system(word, value);
}

#endif
