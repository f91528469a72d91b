// SPDX-License-Identifier: BSD-3-Clause
// The identity of the host is found out once: what a process tells of itself,
// and what it compares its peers with, stay the same.
#define _GNU_SOURCE
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/node/node.h"

// What node.c needs of the rest.
int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
{
    (void)err, (void)detail, (void)format;
    return code;
}

int
wm_error_context(wm_error_t *err, const char *format, ...)
{
    (void)err, (void)format;
    return WM_ERR_CUDA;
}

int
wm_host_register(int device, void *ptr, size_t size, wm_error_t *err)
{
    (void)device, (void)ptr, (void)size, (void)err;
    return WM_ERR_CUDA;
}

void
wm_engine_lock(void)
{
}

void
wm_engine_unlock(void)
{
}

int
main(void)
{
    wm_endpoint_t first, second, neighbour, stranger;
    setenv("WARPMPI_HOST", "here", 1);
    wm_node_describe(&first);
    setenv("WARPMPI_HOST", "there", 1);
    wm_node_describe(&second);
    assert(!first.failed && memcmp(&first, &second, sizeof first) == 0);
    neighbour = stranger = first;
    neighbour.id[0] ^= 1;
    stranger.id[0] ^= 2;
    stranger.host[0] ^= 1;
    assert(wm_node_peer(&neighbour)->same_host);
    assert(!wm_node_peer(&stranger)->same_host);
    assert(wm_node_peer(&first)->self);
    return 0;
}
