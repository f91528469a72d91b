// SPDX-License-Identifier: BSD-3-Clause
// Counters of what this process does with the memory of one peer: mappings,
// puts and gets, halos. wm.stats(peers=comm) shows them by rank. Each is
// changed atomically, by any thread.
#ifndef WM_COMM_NODE_PEER_STATS_H
#define WM_COMM_NODE_PEER_STATS_H

#include <stdatomic.h>
#include <stdint.h>

// X(name): each is a key of the peer's counters.
#define WM_PEER_COUNTERS(X)                                                   \
    X(mappings_opened)      /* its allocations mapped here */                 \
    X(mapping_microseconds) /* taken to open these */                         \
    X(mappings_hit)         /* uses of one already mapped */                  \
    X(mappings_open)        /* now */                                         \
    X(mapped_bytes)         /* now */                                         \
    X(window_calls)         /* puts, gets and updates, done from here */      \
    X(window_bytes)         /* of those */                                    \
    X(halo_exchanges)       /* by a kernel, in which it is a neighbour */     \
    X(halo_bytes)           /* of those, copied to it (or from it) */

typedef enum {
#define X(name) WM_PEER_STAT_##name,
    WM_PEER_COUNTERS(X)
#undef X
        WM_PEER_STATS,
} wm_peer_stat_t;

typedef struct {
    _Atomic int64_t counts[WM_PEER_STATS];
} wm_peer_stats_t;

void
wm_peer_stat_add(wm_peer_stats_t *stats, wm_peer_stat_t stat, int64_t amount);

int64_t
wm_peer_stat_get(const wm_peer_stats_t *stats, wm_peer_stat_t stat);

const char *
wm_peer_stat_name(wm_peer_stat_t stat);

// Resets the counts of all peers; amounts that are open now stay. Engine lock
// held.
void
wm_peer_stats_reset(void);

#endif
