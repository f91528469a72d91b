// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message.h"

#include <string.h>

size_t
wm_header_length(const wm_header_t *header)
{
    return header->kind == WM_MESSAGE_OFFER || header->failed
               ? sizeof *header
               : WM_HEADER_SHORT;
}

size_t
wm_header_read(wm_header_t *header, const char *packet)
{
    memcpy(header, packet, WM_HEADER_SHORT);
    size_t length = wm_header_length(header);
    memcpy((char *)header + WM_HEADER_SHORT, packet + WM_HEADER_SHORT,
           length - WM_HEADER_SHORT);
    return length;
}

bool
wm_buffer_on_device(const wm_buffer_t *buffer)
{
    return buffer->memory.kind == WM_MEMORY_DEVICE
           || buffer->memory.kind == WM_MEMORY_MANAGED;
}

void
wm_buffer_release(wm_buffer_t *buffer)
{
    void (*release)(void *owner) = buffer->release;
    buffer->release = NULL; // first: it may let others run, who come here
    if (release != NULL)
        release(buffer->owner);
}
