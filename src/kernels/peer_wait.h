// SPDX-License-Identifier: BSD-3-Clause
// Waits of kernels for words that kernels of other processes write, and the
// end of waits in vain.
#ifndef WM_KERNELS_PEER_WAIT_H
#define WM_KERNELS_PEER_WAIT_H

#include "kernels/peer_sync.h"

// A waiting thread looks once in this many polls if it waits in vain. On the
// host one thread waits for all.
#ifdef __CUDACC__
#define WM_LOOKS 2048

WM_DEVICE uint64_t
wm_load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

// Adds to a word that others add to as well; in no order with other writes.
WM_DEVICE void
wm_add_system(uint64_t *word, uint64_t value)
{
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word),
                 "l"(value)
                 : "memory");
}

#else
#define WM_LOOKS 1

WM_DEVICE uint64_t
wm_load_acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

WM_DEVICE void
wm_add_system(uint64_t *word, uint64_t value)
{
    __atomic_add_fetch(word, value, __ATOMIC_RELEASE);
}
#endif

// Returns true if a counter, which may wrap around, has come to the value.
WM_DEVICE bool
wm_has_reached(const uint32_t *word, uint32_t value)
{
    return (int32_t)(wm_load_acquire(word) - value) >= 0;
}

WM_DEVICE bool
wm_has_reached(const uint64_t *word, uint64_t value)
{
    return (int64_t)(wm_load_acquire(word) - value) >= 0;
}

// Returns true, at some of the looks, if a word of page-locked memory says
// that the wait is in vain.
WM_DEVICE bool
wm_is_stopped(const uint32_t *stop, uint32_t looks)
{
    return looks % WM_LOOKS == 0 && wm_load_system(stop) != 0;
}

// Waits until has_come() is true. Returns false if stops(), which gets the
// number of looks so far, is true before.
template <typename come_t, typename stop_t>
WM_DEVICE bool
wm_await(const come_t &has_come, const stop_t &stops)
{
    for (uint32_t looks = 1; !has_come(); looks++) {
        if (stops(looks))
            return false;
        wm_pause();
    }
    return true;
}

#endif
