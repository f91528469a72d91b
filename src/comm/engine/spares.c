// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/spares.h"

#include <stdlib.h>

#include "cuda/lock.h"

void *
wm_spares_take(wm_spares_t *spares)
{
    void *block = NULL;
    wm_lock(&spares->lock);
    if (spares->count > 0)
        block = spares->kept[--spares->count];
    pthread_mutex_unlock(&spares->lock);
    return block != NULL ? block : malloc(spares->bytes);
}

void
wm_spares_give(wm_spares_t *spares, void *block)
{
    wm_lock(&spares->lock);
    if (spares->count < WM_SPARES) {
        spares->kept[spares->count++] = block;
        block = NULL;
    }
    pthread_mutex_unlock(&spares->lock);
    free(block);
}
