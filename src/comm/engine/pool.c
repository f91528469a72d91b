// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/pool.h"

#include <stdlib.h>

#include "cuda/lock.h"

void *
wm_pool_get(wm_pool_t *pool)
{
    void *block = NULL;
    wm_lock(&pool->lock);
    if (pool->count > 0)
        block = pool->kept[--pool->count];
    pthread_mutex_unlock(&pool->lock);
    return block != NULL ? block : malloc(pool->bytes);
}

void
wm_pool_put(wm_pool_t *pool, void *block)
{
    wm_lock(&pool->lock);
    if (pool->count < WM_POOL_BLOCKS) {
        pool->kept[pool->count++] = block;
        block = NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    free(block);
}
