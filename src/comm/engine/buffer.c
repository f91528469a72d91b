// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/buffer.h"

bool
wm_buffer_on_device(const wm_buffer_t *buffer)
{
    return wm_memory_on_device(&buffer->memory);
}

void
wm_buffer_release(wm_buffer_t *buffer)
{
    void (*release)(void *owner) = buffer->release;
    // First: release() may let another thread come here.
    buffer->release = NULL;
    if (release != NULL)
        release(buffer->owner);
}
