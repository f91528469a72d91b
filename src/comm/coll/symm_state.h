// SPDX-License-Identifier: BSD-3-Clause
// The struct behind wm_symm_t, for symm_make.c, which makes it, and symm.c,
// which makes calls. No other file includes this header.
#ifndef WM_COMM_COLL_SYMM_STATE_H
#define WM_COMM_COLL_SYMM_STATE_H

#include <pthread.h>

#include "comm/coll/symm.h"
#include "comm/coll/signature.h"

#define WM_SYMM_ENDED 0xffff // a step: the last

struct wm_symm {
    wm_symm_t *next; // of those of calls that are not captured
    pthread_mutex_t lock;
    wm_comm_t *comm;
    wm_barrier_t *barrier; // streams count calls << 16 | steps, or epochs
    bool captured;         // the calls are
    int device, rank, size;
    wm_symm_memory_t *memory;
    wm_thresholds_t thresholds; // rank 0's
    CUstream stream;            // of this call, or the last
    uint64_t last;              // its id, but in graphs; 0: not known
    CUevent ended;              // in graphs: recorded behind the last
    bool kernel_coll;           // what is shared is theirs, else halves
    wm_signatures_t signatures; // of the calls that were begun
    wm_kernel_coll_t exchange;  // likewise
    uint32_t turn;              // of the halves: the next one that is used
    uint64_t capture;           // of the last call
    uint32_t turns;             // taken so far, in its graph or in all
    uint32_t epochs;            // in its graph, so far
    size_t fragments;           // of the last one that took a turn
    wm_block_t **copies;        // that graphs read
    size_t copied;
    // The failure, in the words that the caller got; code 0: none so far.
    wm_error_t lost;
    wm_error_t former; // likewise, before the last recovery
    // The calls before are right, of both; 0: that is not known.
    uint32_t lost_at, former_at;
    uint32_t epoch; // recoveries
};

// Raises where a rank has died, MPI's error; for good. Lock held.
WM_MUST_CHECK int
wm_symm_find_dead(const wm_symm_t *symm, wm_error_t *err);

#endif
