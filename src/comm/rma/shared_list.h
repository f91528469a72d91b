// SPDX-License-Identifier: BSD-3-Clause
// The shared arrays of this process: their struct, the work on them that has
// not ended, and who has dropped which (shared_list.c). Private to this
// module.
#ifndef WM_COMM_RMA_SHARED_LIST_H
#define WM_COMM_RMA_SHARED_LIST_H

#include <pthread.h>

#include "comm/rma/shared_array.h"
#include "comm/rma/shared_work.h"
#include "comm/rma/waiter.h"

struct wm_shared_array {
    wm_waiter_t waiter;
    int rank, size, slots, device;
    bool on_host;
    bool spins;             // kernels of all ranks run at once
    bool published;         // the others know that this rank has dropped it
    size_t nbytes;          // of this rank's memory
    size_t head;            // bytes before the array itself
    size_t counters, words; // where our counters begin; how many words
    wm_symm_memory_t *memory;
    wm_shared_t shared; // as in memory
    pthread_mutex_t work_lock;
    wm_shared_work_t work; // on the array; work_lock
    int index;             // of our drop word
    struct {
        wm_peer_t *peer;
        wm_dtype_t dtype;
        int ndim;
        int64_t *shape;
        int index;      // of its drop word
        uint32_t drops; // value of that word when the array was made
    } ranks[];
};

// Takes a drop word. Returns its index, which is given back by
// wm_segment_words_give(), and its value, or an error. Engine lock held.
int
wm_shared_list_take(uint32_t *drops, wm_error_t *err);

// Adds a new array. Engine lock not held.
void
wm_shared_list_add(wm_shared_array_t *array, wm_comm_t *comm);

// Remembers work on the array that was enqueued, so that memory is not freed
// before its end: by an event or, in a capture, until the graph is gone.
WM_MUST_CHECK int
wm_shared_list_note(wm_shared_array_t *array, const wm_shared_call_t *call,
                    CUstream stream, wm_error_t *err);

#endif
