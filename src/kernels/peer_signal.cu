// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/peer_signal.h"
#include "kernels/peer_sync.h"

WM_DEVICE void
await_counter(const wm_shared_t &shared, int counter, uint64_t value)
{
#ifdef __CUDACC__
    wm_shared_await(&shared, counter, value);
#else // on the host others need the core
    while ((int64_t)(wm_shared_count(&shared, counter) - value) < 0)
        wm_pause();
#endif
}

WM_KERNEL(wm_peer_signal, wm_peer_signal_params_t)
{
    if (wm_peer_thread() == 0)
        wm_shared_raise(&p.shared, p.rank, p.counter, p.value);
}

WM_KERNEL(wm_peer_wait, wm_peer_wait_params_t)
{
    if (wm_peer_thread() > 0)
        return;
    await_counter(p.shared, p.counter, p.value);
    if (p.takes != 0)
        wm_shared_take(&p.shared, p.counter, p.value);
}

// Each thread serves other ranks; none waits before it has raised all its
// counters.
WM_KERNEL(wm_peer_barrier, wm_peer_barrier_params_t)
{
    const wm_shared_t &shared = p.shared;
    const uint32_t size = (uint32_t)shared.size;
    const uint32_t own = (uint32_t)shared.rank;
    for (uint32_t i = wm_peer_thread() + 1; i < size && p.raises != 0;
         i += wm_peer_threads())
        wm_shared_raise(&shared, (int)((own + i) % size), shared.slots + own,
                        1);
    for (uint32_t i = wm_peer_thread() + 1; i < size && p.waits != 0;
         i += wm_peer_threads()) {
        const int counter = shared.slots + (int)((own + i) % size);
        await_counter(shared, counter, 1);
        wm_shared_take(&shared, counter, 1);
    }
}
