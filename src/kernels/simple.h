// SPDX-License-Identifier: BSD-3-Clause
// Simple protocol: FIFOs of chunks, with a fence and a flag after each chunk,
// as NCCL's Simple, for payloads of any length. A rank writes chunks into
// slots in another rank's memory. The other rank copies or reduces them from
// there while the next chunks are on their way. A rank's memory for Simple,
// which all GPUs reach, is a head and the slots of each channel and rank. Two
// blocks serve a channel: one gives and one takes. The chunks go to the
// channels in turn. Both ends count the chunks on the GPU, so that kernels may
// be replayed. Shared by C and CUDA.
#ifndef WM_KERNELS_SIMPLE_H
#define WM_KERNELS_SIMPLE_H

#include <stdint.h>

#include "kernels/ll.h"

#define WM_SIMPLE_CHANNELS 64
#define WM_SIMPLE_ALIGN 512 // divides chunk sizes: no element is cut

// Counters of a channel and another rank, which writes them: chunks that have
// arrived in our slots, and chunks that the rank has taken out of its own
// slots.
typedef struct {
    uint32_t arrived, taken;
} wm_simple_end_t;

typedef struct {
    wm_simple_end_t ends[WM_SIMPLE_CHANNELS][WM_LL_RANKS];
} wm_simple_head_t;

#define WM_SIMPLE_HEAD 32768 // bytes

// Chunks of a channel that were sent to and got from another rank before this
// kernel.
typedef struct {
    uint32_t sent, got;
} wm_simple_count_t;

// State of a rank's kernels, in memory of its own GPU.
typedef struct {
    uint32_t blocks; // blocks of a kernel that have ended
    // Steps of this kernel whose data has been read by the giving block.
    uint32_t read[WM_SIMPLE_CHANNELS];
    uint32_t reduced[WM_SIMPLE_CHANNELS]; // steps that can be given back
    wm_simple_count_t counts[WM_SIMPLE_CHANNELS][WM_LL_RANKS];
} wm_simple_own_t;

#define WM_SIMPLE_NOBODY 0xffffffffu

// A span of bytes that is given or taken; nbytes 0: none.
typedef struct {
    uint64_t at, nbytes;
} wm_simple_span_t;

typedef struct {
    wm_simple_own_t *own;
    const char *src;
    char *dst;
    const wm_ll_rank_t *many; // all ranks, if more than WM_LL_FEW
    uint64_t before;          // bytes from the Simple head to the LL head
    uint32_t *word;           // this rank's stream word; NULL: none
    uint32_t begun;           // value of *word at the start
    uint32_t done;            // value of *word at the end; or as in LL
    uint32_t left;            // value of *word if this rank aborts
    uint32_t past; // progress of a peer's word once its call has ended
    uint32_t rank, size;
    // Passing on, chunk by chunk: a rank gives what it takes from the rank
    // `from`. What it reduces goes into the slots of the rank `onto`, not to
    // `dst`.
    uint32_t from, onto; // WM_SIMPLE_NOBODY: does not pass on
    uint32_t channels, steps;
    uint32_t slots, slot_bytes; // slots of a channel and rank; bytes of a slot
    uint32_t unit;     // 16, 8, 4, 2 or 1 bytes: divides all addresses
    uint32_t overlaid; // takes may overlap gives
    uint32_t op;
    wm_average_t average;
    wm_ll_rank_t few[WM_LL_FEW];
    wm_simple_span_t gives[WM_LL_RANKS], takes[WM_LL_RANKS];
} wm_simple_params_t;

#endif
