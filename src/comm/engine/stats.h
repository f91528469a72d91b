// SPDX-License-Identifier: BSD-3-Clause
// Counters of the library, one set for each process, changed atomically.
#ifndef WM_COMM_ENGINE_STATS_H
#define WM_COMM_ENGINE_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "comm/engine/links.h"

// X(name): each is a key of wm.stats(). The receiver counts a message for the
// link by which it came.
#define WM_LINK_COUNTERS(name) X(name##_messages) X(name##_bytes)
#define WM_COUNTERS(X)                                                        \
    WM_LINKS(WM_LINK_COUNTERS) /* received messages of each link */           \
    X(pushed_messages)         /* of those of ipc, copied by their sender */  \
    X(staged_bytes)            /* copied through host memory, either way */   \
    X(handed_off_bytes)        /* copied into exportable memory first */      \
    X(ipc_collectives)         /* collectives of GPU buffers, GPU to GPU */   \
    X(fused_collectives)    /* of those, that shared a kernel with others */  \
    X(repeated_collectives) /* and persistent starts, as the one before */    \
    X(staged_collectives)   /* collectives of GPU buffers through the host */ \
    X(nccl_collectives)     /* collectives by NCCL, between hosts */          \
    X(nccl_bytes)           /* that this rank gave to others there */         \
    X(asked_collectives)    /* between hosts, for which ranks asked */        \
    X(moved_collectives)    /* of arrays moved to an engine's memory */       \
    X(rail_bytes)           /* that hierarchical ones gave to other hosts */  \
    X(staged_calls)         /* files, windows, packing: likewise */           \
    X(served_operations)    /* of windows, done here for other ranks */       \
    X(rma_operations)       /* Put and Get that a link has done alone */      \
    X(rma_bytes)            /* of those */                                    \
    X(rma_failovers)        /* ranks whose memory the link has given up */    \
    X(halo_exchanges)       /* by a kernel */                                 \
    X(halo_bytes)           /* of those, that this rank has written */        \
    X(staged_halos)         /* by messages */                                 \
    X(halos_without_lines)  /* sets that no memory was left for */            \
    X(sent_messages)                                                          \
    X(sent_bytes)                                                             \
    X(received_messages)                                                      \
    X(received_bytes)                                                         \
    X(mappings_opened) /* peers' allocations mapped */                        \
    X(mappings_hit)    /* uses of one already mapped */                       \
    X(mappings_closed)                                                        \
    X(mappings_open)           /* now */                                      \
    X(mapped_bytes)            /* now */                                      \
    X(shared_arrays)           /* now, until all ranks have dropped them */   \
    X(shared_bytes)            /* of those, this rank's; now */               \
    X(device_synchronizations) /* for producers that name no stream */

typedef enum {
#define X(name) WM_STAT_##name,
    WM_COUNTERS(X)
#undef X
        WM_STATS,
} wm_stat_t;

void
wm_stat_add(wm_stat_t stat, int64_t amount);

int64_t
wm_stat_get(wm_stat_t stat);

const char *
wm_stat_name(wm_stat_t stat);

void
wm_stat_reset(void); // resets counts; amounts that are open now stay

#endif
