// SPDX-License-Identifier: BSD-3-Clause
// LL protocol: 16-byte lines of 8 bytes of data and an 8-byte flag
// (kernels/eager_ll.h), as NCCL's LL: a receiver sees a line as soon as it is
// written. A short collective is one kernel on each rank, which writes lines
// into the LL buffers of the other ranks and reads its own. A rank's LL
// memory, which all GPUs reach, is a head and, for each other rank, two LL
// buffers that are used alternately. Exchanges have the same numbers on all
// ranks. Shared by C and CUDA.
#ifndef WM_KERNELS_LL_H
#define WM_KERNELS_LL_H

#include <stdint.h>

#include "kernels/eager_ll.h"
#include "kernels/reduce.h"

#define WM_LL_RANKS 64
#define WM_LL_FEW 8 // most ranks in kernel parameters; more are in memory

// The number of the next exchange, and of the one two before. The parity of
// the number chooses the LL buffer. 0 is the flag of a line that nobody has
// written; 0, and UINT32_MAX before it, are skipped.
#define WM_LL_NEXT(number) ((number) + ((number) >= UINT32_MAX - 1 ? 3u : 1u))
#define WM_LL_LAST_BUT_ONE(number) ((number) - ((number) <= 2 ? 4u : 2u))

typedef struct {
    char *ll; // the rank's LL memory
    // The rank's stream word (comm/node/barrier.h), and its first value. In a
    // graph our abort flag, and the rank (kernels/abort.h).
    const uint32_t *word;
    uint32_t base;
} wm_ll_rank_t;

// The head of a rank's LL memory, which the other ranks write.
typedef struct {
    uint32_t done[WM_LL_RANKS]; // last exchange each rank has read
} wm_ll_head_t;

#define WM_LL_HEAD 2048 // bytes

// State of a rank's kernels, in memory of their own GPU.
typedef struct {
    uint32_t count;  // number of the last exchange, if counted here (graphs)
    uint32_t blocks; // blocks of a kernel that have ended
    wm_ll_rank_t ranks[WM_LL_RANKS]; // all ranks, if more than WM_LL_FEW
} wm_ll_own_t;

// LL128 protocol, as NCCL's: lines of 112 bytes of data and a 16-byte flag (in
// NCCL 120 and 8). They cost fewer bytes than LL's, and need a link that keeps
// the bytes of a line together, as NVLink does (kernels/ll128_line.h).
#define WM_LL128_BYTES 128
#define WM_LL128_PAYLOAD 112

#define WM_LL_NOBODY 0xffffffffu
#define WM_LL_IN_GRAPH 0x8000u // a bit of `past`; others have it never
#define WM_AWAITED_BITS 8 // 1 plus a rank; above, how often it was looked for

// The blocks that this rank gives to some ranks, or takes from them. They have
// one length, at equal distances.
typedef struct {
    uint64_t at; // offset of the block of rank 0
    uint32_t step, nbytes;
    uint32_t first, count; // ranks; count 0: none
} wm_ll_side_t;

typedef struct {
    wm_ll_own_t *own;
    const char *src;
    char *dst;
    wm_ll_side_t gives, takes;
    uint32_t *word; // this rank's stream word; NULL: none
    uint32_t begun; // value of *word at the start (LL128 only)
    uint32_t done;  // value of *word at the end; in a graph its capture
    uint32_t past;  // progress of a peer's word once its call has ended
    uint32_t rank, size;
    uint32_t number;       // of this exchange; 0: follows own->count
    uint32_t buffer_bytes; // bytes of an LL buffer
    int64_t first;         // bytes from the head to the first LL buffer
    // LL: 8, 4, 2 or 1 bytes, which divide all addresses and sizes. LL128: 16
    // to 1 bytes, which divide addresses and steps only.
    uint32_t unit;
    uint32_t op;
    wm_average_t average;
    uint32_t reduces; // true: reduces; false: moves
    // LL128 only: the payload of `whole` bytes is divided into parts, one for
    // each rank but `without`. The length of a part is that of `gives` and
    // `takes`, a multiple of 16; the last part is shorter, or empty. A rank
    // takes its part from all ranks in `takes` and reduces it. It gives the
    // result, in the next exchange, which also belongs to this call, to the
    // rank `onto`, or to all ranks that have a part.
    uint32_t in_parts;
    uint32_t without, onto; // WM_LL_NOBODY: all have one; all get it
    uint64_t whole;
    wm_ll_rank_t few[WM_LL_FEW];
} wm_ll_params_t;

#endif
