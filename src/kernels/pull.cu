// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/pull.h"
#include "kernels/group.h"

#define PULLED_AT_ONCE 4 // units that a thread has under way

struct alignas(16) wm_pulled16 {
    uint64_t part[2];
};

// Copies units. All loads are issued before any store: one round trip to the
// peer. The last threads, which units may not need, copy the bytes behind the
// units.
template <typename unit_t>
WM_DEVICE void
pull(const wm_pull_t &task, size_t thread, size_t threads)
{
    const unit_t *src = (const unit_t *)task.src;
    unit_t *dst = (unit_t *)task.dst;
    const size_t count = task.nbytes / sizeof(unit_t);
    for (size_t i = thread; i < count; i += PULLED_AT_ONCE * threads) {
        unit_t values[PULLED_AT_ONCE];
        WM_UNROLL
        for (size_t k = 0; k < PULLED_AT_ONCE; k++) {
            const size_t at = i + k * threads;
            values[k] = src[at < count ? at : count - 1];
        }
        WM_UNROLL
        for (size_t k = 0; k < PULLED_AT_ONCE; k++)
            if (i + k * threads < count)
                dst[i + k * threads] = values[k];
    }
    for (size_t i = count * sizeof(unit_t) + (threads - 1 - thread);
         i < task.nbytes; i += threads)
        task.dst[i] = task.src[i];
}

WM_DEVICE void
pull_task(const wm_pull_t &task, size_t thread, size_t threads)
{
    if (task.unit == 16)
        pull<wm_pulled16>(task, thread, threads);
    else if (task.unit == 4)
        pull<uint32_t>(task, thread, threads);
    else
        pull<uint8_t>(task, thread, threads);
}

template <typename params_t>
WM_DEVICE void
pull_all(const params_t &p)
{
    const size_t threads = p.width * wm_group_threads<1>();
    const size_t each = wm_group_threads<1>() / p.count; // of a copy
    const size_t part = wm_group_thread<1>() / each;
    if (p.width == 0 && wm_block() == 0 && part < p.count)
        pull_task(p.pulls[part], wm_group_thread<1>() % each, each);
    for (uint32_t at = wm_block(); at < p.count * p.width; at += wm_blocks()) {
        const wm_pull_t &task = p.pulls[at / p.width];
        pull_task(task,
                  at % p.width * wm_group_threads<1>() + wm_group_thread<1>(),
                  threads);
        bool any;
        if (task.taken != nullptr && wm_group_ended<1>(false, &any))
            wm_store_system(task.taken, task.taken_value);
    }
    wm_signal_end(p.signal);
}

WM_KERNEL(wm_pull, wm_pull_params_t)
{
    pull_all(p);
}

WM_KERNEL(wm_pull_few, wm_pull_few_params_t)
{
    pull_all(p);
}
