// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/peer_stats.h"

#include "comm/node/node.h"

static const char *const names[WM_PEER_STATS] = {
#define X(name) #name,
    WM_PEER_COUNTERS(X)
#undef X
};

void
wm_peer_stat_add(wm_peer_stats_t *stats, wm_peer_stat_t stat, int64_t amount)
{
    atomic_fetch_add_explicit(&stats->counts[stat], amount,
                              memory_order_relaxed);
}

int64_t
wm_peer_stat_get(const wm_peer_stats_t *stats, wm_peer_stat_t stat)
{
    return atomic_load_explicit(&stats->counts[stat], memory_order_relaxed);
}

const char *
wm_peer_stat_name(wm_peer_stat_t stat)
{
    return names[stat];
}

void
wm_peer_stats_reset(void)
{
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL; peer = peer->next)
        for (int i = 0; i < WM_PEER_STATS; ++i)
            if (i != WM_PEER_STAT_mappings_open
                && i != WM_PEER_STAT_mapped_bytes)
                atomic_store(&peer->stats.counts[i], 0);
}
