// SPDX-License-Identifier: BSD-3-Clause
// Words of this process's segment (segment.h) that windows, halos, shared
// arrays and messages in graphs have. Other processes are told their index.
// Engine lock held.
#ifndef WM_COMM_NODE_SEGMENT_WORDS_H
#define WM_COMM_NODE_SEGMENT_WORDS_H

#include "comm/node/segment.h"
#include "cuda/error.h"

typedef enum {
    WM_WORDS_OF_EPOCHS,  // of one neighbour
    WM_WORDS_OF_SHARED,  // of a shared array
    WM_WORDS_OF_WINDOWS, // of a window
    WM_WORDS_OF_PORTS,   // of an end of a message in a graph
    WM_WORDS_KINDS,
} wm_words_kind_t;

// Takes words of a kind. Returns their index, or WM_ERR_MEMORY if all are in
// use.
int
wm_segment_words_take(wm_words_kind_t kind, wm_error_t *err);

// Gives words back. A negative index is no words.
void
wm_segment_words_give(wm_words_kind_t kind, int index);

#endif
