// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/header.h"

#include <string.h>

void
wm_header_describe(wm_header_t *header, const wm_buffer_t *buffer)
{
    header->magic = WM_HEADER_MAGIC;
    header->nbytes = buffer->nbytes;
    header->pickled = buffer->pickled;
    header->element = buffer->nbytes > 0 ? buffer->element : 0;
}

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
