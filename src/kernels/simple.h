// SPDX-License-Identifier: BSD-3-Clause
// Simple protocol: FIFOs of chunks, with a fence and a flag after each chunk,
// as NCCL's Simple, for payloads of any length. A rank writes chunks into
// slots in another rank's memory, and that rank copies or reduces them from
// there, while the next chunks are on their way. A rank's memory for Simple,
// which all GPUs reach, is a head and the slots of each channel and rank. Two
// blocks serve a channel, of which one gives and one takes; the chunks go to
// the channels in turn. Both ends count the chunks on the GPU, so that kernels
// may be replayed. Shared by C and CUDA.
#ifndef WM_KERNELS_SIMPLE_H
#define WM_KERNELS_SIMPLE_H

#include <stdint.h>

#include "kernels/ll.h"

#define WM_SIMPLE_CHANNELS 64
#define WM_SIMPLE_ALIGN 512 // a chunk's bytes, so that no element is cut

// Of a channel and another rank, which writes it: chunks that are in our
// slots, and that it has taken out of its own.
typedef struct {
    uint32_t arrived, taken;
} wm_simple_end_t;

typedef struct {
    wm_simple_end_t ends[WM_SIMPLE_CHANNELS][WM_LL_RANKS];
} wm_simple_head_t;

#define WM_SIMPLE_HEAD 32768 // bytes

// Likewise, chunks before this kernel.
typedef struct {
    uint32_t sent, got;
} wm_simple_count_t;

// What a rank's kernels keep for themselves, in memory of their GPU.
typedef struct {
    uint32_t blocks; // of a kernel that have ended
    // Steps of this kernel in which all has been read that is given.
    uint32_t read[WM_SIMPLE_CHANNELS];
    uint32_t reduced[WM_SIMPLE_CHANNELS]; // likewise, that can be given back
    wm_simple_count_t counts[WM_SIMPLE_CHANNELS][WM_LL_RANKS];
} wm_simple_own_t;

#define WM_SIMPLE_NOBODY 0xffffffffu

// Of what is given or taken: nbytes 0: nothing.
typedef struct {
    uint64_t at, nbytes;
} wm_simple_span_t;

typedef struct {
    wm_simple_own_t *own;
    const char *src;
    char *dst;
    const wm_ll_rank_t *many; // where they are more than a few
    uint64_t before;          // bytes from the Simple head to the LL head
    uint32_t *word;           // ours; NULL: none. It becomes
    uint32_t begun;           // this at the beginning, and
    uint32_t done;            // this at the end, or, where
    uint32_t left;            // this rank gives no more, this
    uint32_t past; // another's word when it has done, or will never come here
    uint32_t rank, size;
    // A rank passes on, chunk by chunk: what it takes from one rank is what it
    // gives; what it reduces goes into the slots of one, not to `dst`.
    uint32_t from, onto; // WM_SIMPLE_NOBODY: it does not
    uint32_t channels, steps;
    uint32_t slots, slot_bytes; // of a channel and rank, and of each
    uint32_t unit;     // 16, 8, 4, 2 or 1 bytes: divides all addresses
    uint32_t overlaid; // what is taken may lie over what is given
    uint32_t op;
    wm_ll_rank_t few[WM_LL_FEW];
    wm_simple_span_t gives[WM_LL_RANKS], takes[WM_LL_RANKS];
} wm_simple_params_t;

#endif
