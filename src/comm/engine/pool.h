// SPDX-License-Identifier: BSD-3-Clause
// Pool: a free list of memory blocks of one size that live for microseconds. A
// block that is given back is kept for the next take. With AddressSanitizer
// none is kept, so that it sees the end of each block. Any thread.
#ifndef WM_COMM_ENGINE_POOL_H
#define WM_COMM_ENGINE_POOL_H

#include <pthread.h>
#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#define WM_POOL_BLOCKS 0
#else
#define WM_POOL_BLOCKS 160
#endif

typedef struct {
    pthread_mutex_t lock; // PTHREAD_MUTEX_INITIALIZER
    size_t bytes;         // bytes of a block
    int count;
    void *kept[WM_POOL_BLOCKS + 1];
} wm_pool_t;

// Returns a block, which is not initialized; NULL when memory is exhausted.
void *
wm_pool_get(wm_pool_t *pool);

// Takes back a block of this pool.
void
wm_pool_put(wm_pool_t *pool, void *block);

#endif
