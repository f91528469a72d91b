// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/coll_memory.h"

#include <stdlib.h>

#include "comm/comm/require.h"
#include "comm/engine/stats.h"
#include "cuda/device.h"
#include "cuda/spill.h"

int
wm_coll_block_take(const wm_comm_t *comm, int device, size_t nbytes,
                   wm_block_t **block, wm_error_t *err)
{
    int code = wm_block_alloc(device, nbytes, block, err);
    if (code != WM_ERR_MEMORY || wm_require_is_on(comm)
        || wm_block_spill(device, nbytes, block, NULL) < 0)
        return code;
    wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
    return 0;
}

int
wm_coll_memory_take(wm_coll_memory_t *memory, size_t nbytes, int device,
                    wm_error_t *err)
{
    wm_buffer_t *buffer = &memory->buffer;
    size_t some = nbytes > 0 ? nbytes : 1; // it has a place in any case
    int code = 0;
    *buffer = (wm_buffer_t){.nbytes = nbytes, .memory = {.device = -1}};
    if (device >= 0) {
        code = memory->of != NULL
                   ? wm_coll_block_take(memory->of, device, some,
                                        &memory->block, err)
                   : wm_block_alloc(device, some, &memory->block, err);
        if (code < 0)
            return code;
        buffer->data = wm_block_pointer(memory->block);
        wm_block_describe(memory->block, &buffer->memory);
        return 0;
    }
    if (wm_device_count() > 0)
        code = wm_pinned_alloc(some, &memory->host, err);
    else if ((memory->host = malloc(some)) == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    buffer->data = memory->host;
    return code;
}

void
wm_coll_memory_free(wm_coll_memory_t *memory)
{
    if (memory->block != NULL)
        wm_block_free(memory->block, 0, NULL, NULL);
    if (memory->host != NULL && wm_device_count() > 0)
        wm_pinned_free(memory->host);
    else
        free(memory->host);
    *memory = (wm_coll_memory_t){.block = NULL};
}
