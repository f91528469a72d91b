// SPDX-License-Identifier: BSD-3-Clause
// Updates of a window's memory: target = target op source, element by element
// (Accumulate, Get_accumulate, Fetch_and_op, Compare_and_swap), by origins
// that map the memory and by the engine of its rank. The kernel of atomic
// updates (array/atomic.h) does them in GPU memory where it can. Others are
// done alone: by reductions on the stream, or, where no kernel has them, by
// the CPU, which copies elements to the host and back. In host memory the CPU
// does all. One thread at a time; no GIL; engine lock held or not.
#ifndef WM_COMM_RMA_UPDATE_H
#define WM_COMM_RMA_UPDATE_H

#include "array/atomic.h"
#include "array/strided.h"
#include "comm/coll/call/coll_memory.h"

// The target's memory, and memory of ours of equal size without gaps, which
// CPU and device reach. Zeroed but for these.
typedef struct {
    int device;                // of the target's memory; -1: host memory
    char *dst;                 // NULL: the target has gaps
    const wm_strided_t *parts; // of a target with gaps, with addresses
    int count;
    wm_reduce_type_t type; // by the numbers of reducible.h
    wm_reduce_op_t op;     // which wm_reducible_takes() takes
    const char *src;
    const char *compare; // what the one element must be; NULL: anything
    char *fetched;       // NULL: not wanted
    size_t nbytes;
    wm_signal_t signal; // of an update that is not alone; word NULL: none
    // The update's own.
    int part;                // the next chunk's, and its place there
    size_t part_at, at;      // and in the whole
    size_t chunk;            // bytes that are on the host; 0: none
    wm_coll_memory_t chunks; // of target, source and `compare`
    CUevent event;
} wm_update_t;

// Loads the kernels for memory of a device (-1: none). Engine lock not held.
WM_MUST_CHECK int
wm_update_prepare(int device, wm_error_t *err);

// Refuses gaps of a target that cut elements of a type; `count` 0: no gaps.
WM_MUST_CHECK int
wm_update_check(const wm_strided_t *parts, size_t count, wm_reduce_type_t type,
                wm_error_t *err);

// Returns true if nobody else may update the memory meanwhile: the update is
// in GPU memory, and none of the kernel of atomic updates.
bool
wm_update_is_alone(const wm_update_t *update);

// Goes on with the update. Returns 1 when it is on the stream as a whole, or
// done in host memory; 0: call again, it may wait for the stream.
WM_MUST_CHECK int
wm_update_step(wm_update_t *update, CUstream stream, wm_error_t *err);

// Frees what the update has taken. The stream's work has ended.
void
wm_update_free(wm_update_t *update);

#endif
