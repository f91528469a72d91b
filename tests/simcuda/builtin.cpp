// SPDX-License-Identifier: BSD-3-Clause
// Kernels that stand for a user's own in tests. They sleep for `delay_us`
// before they touch memory.
#include "kernels/kernel.h"

#include <unistd.h>

struct sim_params {
    void *ptr;
    uint64_t value;
    uint64_t count;
    uint64_t delay_us;
};

static void
delay(const sim_params &p)
{
    if (wm_thread() == 0 && p.delay_us > 0)
        usleep((useconds_t)p.delay_us);
}

WM_KERNEL(sim_fill_u8, sim_params)
{
    delay(p);
    for (size_t i = wm_thread(); i < p.count; i += wm_threads())
        ((uint8_t *)p.ptr)[i] = (uint8_t)p.value;
}

WM_KERNEL(sim_add_u32, sim_params)
{
    delay(p);
    for (size_t i = wm_thread(); i < p.count; i += wm_threads())
        ((uint32_t *)p.ptr)[i] += (uint32_t)p.value;
}
