// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/pull.h"
#include "kernels/kernel.h"

#define PULLED_AT_ONCE 4 // units a thread has under way

struct alignas(16) wm_pulled16 {
    uint64_t part[2];
};

// All loads are asked for before any is stored: one way to the peer and back.
template <typename unit_t>
WM_DEVICE void
pull(const wm_pull_t &task)
{
    const unit_t *src = (const unit_t *)task.src;
    unit_t *dst = (unit_t *)task.dst;
    const size_t count = task.nbytes / sizeof(unit_t);
    const size_t step = wm_group_threads<1>();
    for (size_t i = wm_group_thread<1>(); i < count;
         i += PULLED_AT_ONCE * step) {
        unit_t values[PULLED_AT_ONCE];
        for (size_t k = 0; k < PULLED_AT_ONCE; k++) {
            const size_t at = i + k * step;
            values[k] = src[at < count ? at : count - 1];
        }
        for (size_t k = 0; k < PULLED_AT_ONCE; k++)
            if (i + k * step < count)
                dst[i + k * step] = values[k];
    }
}

WM_KERNEL(wm_pull, wm_pull_params_t)
{
    for (uint32_t at = wm_block(); at < p.count; at += wm_blocks()) {
        const wm_pull_t &task = p.pulls[at];
        if (task.unit == 16)
            pull<wm_pulled16>(task);
        else if (task.unit == 4)
            pull<uint32_t>(task);
        else
            pull<uint8_t>(task);
        bool any;
        if (wm_group_ended<1>(false, &any))
            wm_store_system(task.taken, task.taken_value);
    }
}
