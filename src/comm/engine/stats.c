// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/stats.h"

static _Atomic int64_t counts[WM_STATS];
static const char *const names[WM_STATS] = {
#define X(name) #name,
    WM_COUNTERS(X)
#undef X
};

void
wm_stat_add(wm_stat_t stat, int64_t amount)
{
    atomic_fetch_add_explicit(&counts[stat], amount, memory_order_relaxed);
}

int64_t
wm_stat_get(wm_stat_t stat)
{
    return atomic_load_explicit(&counts[stat], memory_order_relaxed);
}

const char *
wm_stat_name(wm_stat_t stat)
{
    return names[stat];
}

void
wm_stat_reset(void)
{
    for (int i = 0; i < WM_STATS; ++i)
        if (i != WM_STAT_mappings_open && i != WM_STAT_mapped_bytes
            && i != WM_STAT_shared_arrays && i != WM_STAT_shared_bytes)
            atomic_store(&counts[i], 0);
}
