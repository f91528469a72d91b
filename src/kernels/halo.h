// SPDX-License-Identifier: BSD-3-Clause
// Halo exchange: one kernel reads this rank's edges and stores them into its
// neighbours' ghosts, which are mapped here. The kernels of neighbours order
// themselves by counters in GPU memory, so a stream and a replayed graph may
// alternate. Shared by C and CUDA.
//
// Each rank has memory for counters that all others have mapped: a line for
// each rank, with what this rank has said to us, and then our own state.
//
//     line r     post: the exchanges in which r let us write its ghosts
//                done: tasks of r that have written our ghosts, ever
//     own        epoch: exchanges that have ended here; blocks: those of a
//                kernel that have ended; ticket: the last kernel that was
//                not of a graph and has ended
//     awaited    by rank: those of its tasks that we have waited for
//
// A short exchange is a kernel of its own, wm_halo_lines: each rank stores its
// edges as LL lines into memory of the neighbour, whose kernel polls the
// lines' flags, which are the epoch, and stores the ghosts itself. It takes
// one way between two ranks, where posts and completions take two, and no
// fence. A rank is never two exchanges ahead of a neighbour, as it waits for
// the neighbour in each, by lines or otherwise; so two halves are enough.
#ifndef WM_KERNELS_HALO_H
#define WM_KERNELS_HALO_H

#include "kernels/copy.h"

#define WM_HALO_NDIM 4   // dimensions of a task, units included
#define WM_HALO_PEERS 26 // most neighbours
#define WM_HALO_LINE 128 // bytes of a line
#define WM_HALO_POST 0   // offsets in a line
#define WM_HALO_DONE 8
#define WM_HALO_EPOCH 0
#define WM_HALO_BLOCKS 8
#define WM_HALO_TICKET 16
#define WM_HALO_SELF UINT32_MAX
#define WM_HALO_LL_LINE 16 // bytes of an LL line, 8 of them data

// Returns the bytes of the counters of a rank.
#define WM_HALO_BYTES(size)                                                   \
    ((size_t)((size) + 1) * WM_HALO_LINE + (size_t)(size) * sizeof(uint64_t))

// A copy by one block: part of the edge of a field. With lines (wm_halo_lines)
// one side is the whole edge or ghosts, of which the task has the units from
// `first` on, and the other is LL lines (kernels/ll.h), of which there are two
// halves, for even and odd exchanges.
typedef struct {
    char *dst;
    const char *src;
    uint32_t count; // units, below 2^31
    uint32_t unit;  // bytes: 1, 2, 4, 8 or 16; divides all addresses
    uint32_t peer;  // index of the neighbour; WM_HALO_SELF: this rank
    uint32_t ndim;
    uint64_t half;  // bytes from one half of the lines to the other
    uint32_t first; // a multiple of the units of a line
    // The first dimension varies fastest. All strides are bytes.
    wm_divisor_t shape[WM_HALO_NDIM - 1]; // the last one needs none
    int64_t dst_strides[WM_HALO_NDIM];
    int64_t src_strides[WM_HALO_NDIM];
} wm_halo_task_t;

typedef struct {
    char *memory; // its counters
    uint32_t rank;
    uint32_t arrivals; // tasks of it that write here, in each exchange
} wm_halo_peer_t;

typedef struct {
    const wm_halo_task_t *tasks; // GPU memory
    char *memory;                // our counters
    const uint32_t *abort;       // not 0: a rank has died
    uint32_t rank, size;
    uint32_t task_count;
    uint32_t sends;       // of the tasks, those that send lines
    uint64_t ticket;      // written at the end; 0: none
    uint32_t waits_first; // 1: the tasks read what neighbours let us read
    uint32_t peer_count;  // 0: the stream orders us, and no kernel waits
    uint32_t unheard;     // by bit: neighbours whose post no task waits for
    wm_halo_peer_t peers[WM_HALO_PEERS];
} wm_halo_params_t;

#endif
