// SPDX-License-Identifier: BSD-3-Clause
// Short collectives in one kernel: each rank writes what it has for another
// into that one's boxes, as lines that hold their flag (kernels/mail.h), and
// takes out of its own what the others wrote. A rank's boxes are memory that
// all GPUs reach: a head, and for each rank two boxes that take turns.
// Exchanges are numbered, alike on all ranks. Shared by C and CUDA.
#ifndef WM_KERNELS_BOXES_H
#define WM_KERNELS_BOXES_H

#include <stdint.h>

#include "kernels/mail.h"

#define WM_BOXES_RANKS 64
#define WM_BOXES_FEW 8 // that a kernel is given; more are in memory

// The number of the exchange after that one, and of the last but one before
// it: odd and even ones take turns. 0 is what a box holds that nobody has
// written, and with it the one before is left out.
#define WM_BOXES_NEXT(number)                                                 \
    ((number) + ((number) >= UINT32_MAX - 1 ? 3u : 1u))
#define WM_BOXES_LAST_BUT_ONE(number) ((number) - ((number) <= 2 ? 4u : 2u))

typedef struct {
    char *boxes;
    // Its word (comm/node/gate.h), and where that began.
    const uint32_t *word;
    uint32_t base;
} wm_boxes_rank_t;

// What the others write.
typedef struct {
    uint32_t done[WM_BOXES_RANKS]; // exchanges, by each rank
} wm_boxes_head_t;

#define WM_BOXES_HEAD 2048 // bytes

// What a rank's kernels keep for themselves, in memory of their GPU.
typedef struct {
    uint32_t count;  // exchanges that are numbered here, as in graphs
    uint32_t blocks; // of a kernel that have ended
    wm_boxes_rank_t ranks[WM_BOXES_RANKS]; // where they are many
} wm_boxes_own_t;

// Longer parts go in wide lines, which cost fewer bytes, where a link keeps
// their bytes together.
#define WM_WIDE_BYTES 128
#define WM_WIDE_PAYLOAD 112

#define WM_BOXES_NOBODY 0xffffffffu

// What this rank gives to some ranks, or takes from them: blocks of one length
// at equal distances.
typedef struct {
    uint64_t at; // of rank 0
    uint32_t step, nbytes;
    uint32_t first, count; // ranks; count 0: none
} wm_boxes_side_t;

typedef struct {
    wm_boxes_own_t *own;
    const char *src;
    char *dst;
    wm_boxes_side_t gives, takes;
    uint32_t *word; // ours; NULL: none. It becomes
    uint32_t begun; // this at the beginning, where lines are wide, and
    uint32_t done;  // this at the end
    uint32_t past;  // another's word when it has done, or will never come here
    uint32_t rank, size;
    uint32_t number;    // of this exchange; 0: it is counted in own
    uint32_t box_bytes; // as lines
    int64_t first;      // from a head to its first box
    // 8, 4, 2 or 1 bytes: divides all addresses and sizes; 16 of wide lines.
    uint32_t unit;
    uint32_t op;
    uint32_t reduces; // else moves
    // Of wide lines: whether all that is reduced or passed on, of `whole`
    // bytes, goes in parts, one for each rank but the one without. A part is
    // of as many bytes as are given and taken, a multiple of 16, the last one
    // shorter, or empty. A rank takes its part from all in `takes`, reduces
    // it, and gives it in the next exchange, which is this call's, too, to
    // one rank, or to all who have a part.
    uint32_t in_parts;
    uint32_t without, onto; // WM_BOXES_NOBODY: all have one; all are given it
    uint64_t whole;
    wm_boxes_rank_t few[WM_BOXES_FEW];
} wm_boxes_params_t;

#endif
