// SPDX-License-Identifier: BSD-3-Clause
// Short collectives as one kernel on each GPU, which writes into the others'
// boxes and waits for what they write (array/boxes.h).
#ifndef WM_COMM_COLL_EXCHANGE_H
#define WM_COMM_COLL_EXCHANGE_H

#include "array/boxes.h"
#include "comm/coll/laid.h"

// All ranks' boxes.
typedef struct {
    uint32_t rank, size;
    bool counted;    // on the GPU, as in graphs
    uint32_t number; // of the last exchange
    char *own;
    wm_boxes_rank_t few[WM_BOXES_FEW];
} wm_exchange_t;

// Words that kernels write, and look at: ours becomes `done`, and another's
// has reached `past`, counted from where it began, when that rank has done
// with the exchange or will never come to it. `own` NULL: none.
typedef struct {
    uint32_t *own;
    uint32_t done, past;
} wm_exchange_words_t;

WM_MUST_CHECK int
wm_exchange_open(wm_exchange_t *exchange, int device,
                 const wm_boxes_rank_t *ranks, int rank, int size,
                 wm_error_t *err);

// Whether it is short enough: alike on all ranks that were asked for the same.
bool
wm_exchange_serves(const wm_laid_t *laid);

// Gives it to the stream.
WM_MUST_CHECK int
wm_exchange_enqueue(wm_exchange_t *exchange, const wm_laid_t *laid,
                    const wm_exchange_words_t *words, wm_error_t *err);

#endif
