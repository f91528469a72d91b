// SPDX-License-Identifier: BSD-3-Clause
// The struct of wm_barrier_t: a rank's view of the slots of all ranks. The
// barrier, its stream words and its decision log alone include this header.
#ifndef WM_COMM_NODE_BARRIER_RANKS_H
#define WM_COMM_NODE_BARRIER_RANKS_H

#include "comm/node/barrier.h"
#include "comm/node/node.h"

struct wm_barrier {
    struct wm_barrier *next; // next closed one
    int rank, size;
    int bank;
    uint32_t steps;  // steps before this epoch
    uint32_t before; // our word at that time
    uint32_t calls;  // blocking calls so far
    int arrived;     // ranks before this one have arrived at `step`
    int step;
    struct {
        wm_barrier_row_t *slot;
        wm_exchange_area_t *area;
        _Atomic uint32_t *arrived; // steps of all epochs
        uint32_t base;             // its value before the first epoch
        uint32_t calls;            // its blocking calls at that time
        uint32_t streams; // its word of streams when we began to count
    } of[];
};

// Returns the index of our slot.
static inline int
barrier_index_of(const wm_barrier_t *barrier)
{
    return (int)(barrier->of[barrier->rank].slot
                 - wm_node_self()->segment->barrier_rows);
}

#endif
