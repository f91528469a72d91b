// SPDX-License-Identifier: BSD-3-Clause
// The host bodies of peer_sync.h's primitives. Threads run one after the
// other, and the first does all the work.
#ifndef WM_KERNELS_PEER_SYNC_HOST_H
#define WM_KERNELS_PEER_SYNC_HOST_H

#include <sched.h>
#include <unistd.h>

WM_DEVICE uint32_t
wm_peer_thread()
{
    return wm_host_thread == 0 ? 0 : UINT32_MAX / 2;
}

WM_DEVICE uint32_t
wm_peer_threads()
{
    return 1;
}

WM_DEVICE bool
wm_peer_works()
{
    return wm_host_thread == 0;
}

WM_DEVICE uint32_t
wm_peer_warp()
{
    return 0;
}

WM_DEVICE uint32_t
wm_peer_warps()
{
    return 1;
}

WM_DEVICE bool
wm_peer_publishes()
{
    return wm_host_thread == 0;
}

// Mostly sleeps: the simulated GPUs of all ranks share a few cores, and Linux
// starves others beside threads that only yield.
WM_DEVICE void
wm_pause()
{
    static thread_local unsigned pauses;
    if (++pauses % 8 != 0)
        sched_yield();
    else
        usleep(50);
}

// On the host, stores are seen in their order.
WM_DEVICE void
wm_linger()
{
}

WM_DEVICE void
wm_fence_device()
{
}

WM_DEVICE void
wm_block_sync()
{
}

WM_DEVICE uint32_t
wm_block_thread()
{
    return 0;
}

WM_DEVICE uint32_t
wm_block_threads()
{
    return 1;
}

WM_DEVICE bool
wm_block_leads()
{
    return true;
}

WM_DEVICE bool
wm_block_publishes()
{
    return true;
}

WM_DEVICE bool
wm_block_all(bool mine)
{
    return mine;
}

struct wm_block_role_t {
    uint32_t first, step;
    bool gives, takes;
};

WM_DEVICE wm_block_role_t
wm_block_role(uint32_t channels)
{
    if (wm_host_thread > 0)
        return {channels, 1, false, false};
    return {0, 1, true, true};
}

WM_DEVICE uint32_t
wm_load_acquire(const uint32_t *word)
{
    return wm_load_system(word);
}

template <typename unit_t>
WM_DEVICE unit_t
wm_load_far(const unit_t *from)
{
    return *from;
}

#endif
