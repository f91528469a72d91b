// SPDX-License-Identifier: BSD-3-Clause
// Contiguous memory of ours that a call is given as a buffer, such as the
// share of a vector that a rank reduces. One thread at a time.
#ifndef WM_COMM_COLL_CALL_COLL_MEMORY_H
#define WM_COMM_COLL_CALL_COLL_MEMORY_H

#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"
#include "cuda/memory.h"

// Zeroed: none.
typedef struct {
    wm_buffer_t buffer; // has its length also after wm_coll_memory_take failed
    wm_block_t *block;  // it is in device memory, or
    void *host;         // in host memory, page-locked if there are GPUs
    const wm_comm_t *of; // not NULL: taken by wm_coll_block_take
} wm_coll_memory_t;

// Takes memory on a GPU; `device` -1: of the host.
WM_MUST_CHECK int
wm_coll_memory_take(wm_coll_memory_t *memory, size_t nbytes, int device,
                    wm_error_t *err);

// Takes a block of a GPU for a call that has begun, or will begin, on other
// ranks, where no failure of this rank can be told any more. If the GPU is
// full, the block is of page-locked host memory (`staged_bytes`), unless calls
// may not stage (require.h).
WM_MUST_CHECK int
wm_coll_block_take(const wm_comm_t *comm, int device, size_t nbytes,
                   wm_block_t **block, wm_error_t *err);

// Frees it; nobody uses it any more.
void
wm_coll_memory_free(wm_coll_memory_t *memory);

#endif
