// SPDX-License-Identifier: BSD-3-Clause
// The primitives of kernels that wait for kernels of other processes. Device
// bodies are here, host bodies in peer_sync_host.h.
#ifndef WM_KERNELS_PEER_SYNC_H
#define WM_KERNELS_PEER_SYNC_H

#include "kernels/kernel.h"

#ifdef __CUDACC__

// Like wm_thread() and wm_threads(), for a kernel whose threads wait for
// kernels of other processes. On the host, where threads run in turn, the
// first thread does all the work.
WM_DEVICE uint32_t
wm_peer_thread()
{
    return (uint32_t)wm_thread();
}

WM_DEVICE uint32_t
wm_peer_threads()
{
    return (uint32_t)wm_threads();
}

// Returns true if this thread has work. The next two functions count warps.
WM_DEVICE bool
wm_peer_works()
{
    return true;
}

WM_DEVICE uint32_t
wm_peer_warp()
{
    return (uint32_t)wm_thread() / 32;
}

WM_DEVICE uint32_t
wm_peer_warps()
{
    return (uint32_t)wm_threads() / 32;
}

// Returns true for the thread that publishes that the kernel has begun. The
// word is in host memory, so this is a thread that executes no fence soon
// after.
WM_DEVICE bool
wm_peer_publishes()
{
    return wm_thread() + 1 == wm_threads();
}

// Called between two polls of a word.
WM_DEVICE void
wm_pause()
{
}

// Waits a millisecond, in which data under way arrive.
WM_DEVICE void
wm_linger()
{
    const uint64_t began = wm_now_ns();
    while (wm_now_ns() - began < 1000000) // __nanosleep may return at once
        __nanosleep(1000);
}

// Orders this thread's earlier writes before its later ones, for other blocks.
WM_DEVICE void
wm_fence_device()
{
    __threadfence();
}

// Barrier of all threads of a block.
WM_DEVICE void
wm_block_sync()
{
    __syncthreads();
}

// Functions for a block whose threads work together; on the host a block is
// one thread. They return the thread's number, the number of threads, and true
// for the first (leads) or last (publishes) thread. wm_block_all(), which all
// threads call, returns true if `mine` is true on all.
WM_DEVICE uint32_t
wm_block_thread()
{
    return threadIdx.x;
}

WM_DEVICE uint32_t
wm_block_threads()
{
    return blockDim.x;
}

WM_DEVICE bool
wm_block_leads()
{
    return threadIdx.x == 0;
}

// Returns true for a thread outside of the first warp, which meanwhile waits
// for the next chunk.
WM_DEVICE bool
wm_block_publishes()
{
    return threadIdx.x + 1 == blockDim.x;
}

WM_DEVICE bool
wm_block_all(bool mine)
{
    return __syncthreads_and(mine) != 0;
}

// The role of a block: its channels, and whether it gives or takes. Half of
// the blocks give, for one channel each, and half take. On the host one thread
// does all in turn.
struct wm_block_role_t {
    uint32_t first, step;
    bool gives, takes;
};

WM_DEVICE wm_block_role_t
wm_block_role(uint32_t channels)
{
    const bool gives = blockIdx.x < channels;
    return {blockIdx.x % channels, channels, gives, !gives};
}

// Loads a word. A thread that sees its value sees all that was written before.
WM_DEVICE uint32_t
wm_load_acquire(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

// Loads data that others write while the kernel runs: 1, 2, 4, 8 or 16 bytes,
// aligned.
template <typename unit_t>
WM_DEVICE unit_t
wm_load_far(const unit_t *from)
{
    unit_t unit;
    if constexpr (sizeof(unit_t) == 16) {
        uint64_t parts[2];
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(parts[0]), "=l"(parts[1])
                     : "l"(from));
        __builtin_memcpy(&unit, parts, sizeof(unit));
    }
    else if constexpr (sizeof(unit_t) == 8) {
        const uint64_t part = *(const volatile uint64_t *)from;
        __builtin_memcpy(&unit, &part, sizeof(unit));
    }
    else if constexpr (sizeof(unit_t) == 4) {
        const uint32_t part = *(const volatile uint32_t *)from;
        __builtin_memcpy(&unit, &part, sizeof(unit));
    }
    else if constexpr (sizeof(unit_t) == 2) {
        const uint16_t part = *(const volatile uint16_t *)from;
        __builtin_memcpy(&unit, &part, sizeof(unit));
    }
    else {
        const uint8_t part = *(const volatile uint8_t *)from;
        __builtin_memcpy(&unit, &part, sizeof(unit));
    }
    return unit;
}

#else
#include "kernels/peer_sync_host.h"
#endif
#endif
