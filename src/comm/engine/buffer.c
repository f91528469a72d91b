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
    buffer->release = NULL; // first: it may let others run, who come here
    if (release != NULL)
        release(buffer->owner);
}
