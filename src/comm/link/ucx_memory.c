// SPDX-License-Identifier: BSD-3-Clause
#include "comm/link/ucx_memory.h"

#include "comm/link/ucx_library.h"
#include "cuda/device.h"
#include "cuda/lock.h"

// Registrations beyond this number replace the one that was not used for the
// longest time.
#define KEPT 64

struct wm_ucx_memory {
    uint64_t buffer_id; // 0: the place is free
    uintptr_t base;
    int device;
    void *handle; // NULL: UCX cannot register this memory
    int users;    // messages under way
    uint64_t used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all below
static wm_ucx_memory_t kept[KEPT];
static void *context; // of UCX; NULL: there are no registrations
static uint64_t uses; // grows with each use

// Ends a registration, with the context of its device current: whoever frees
// the memory may have none.
static void
memory_end(wm_ucx_memory_t *memory)
{
    wm_scope_t scope;
    bool entered = memory->handle != NULL
                   && wm_device_enter(memory->device, &scope, NULL) == 0;
    if (memory->handle != NULL)
        (void)wm_ucx.ucp_mem_unmap(context, memory->handle);
    if (entered)
        wm_device_leave(&scope);
    *memory = (wm_ucx_memory_t){0};
}

// Returns the registration, or a place for it; NULL: all are in use. Ends that
// of other memory which was at this address, and which its owner has freed.
static wm_ucx_memory_t *
memory_find(const wm_pointer_t *memory)
{
    wm_ucx_memory_t *oldest = NULL;
    for (wm_ucx_memory_t *one = kept; one < kept + KEPT; ++one) {
        if (one->buffer_id == memory->buffer_id)
            return one;
        if (one->base == memory->base && one->users == 0)
            memory_end(one);
        if (one->users == 0 && (oldest == NULL || one->used < oldest->used))
            oldest = one;
    }
    if (oldest != NULL)
        memory_end(oldest);
    return oldest;
}

static void
memory_register(wm_ucx_memory_t *one, const wm_pointer_t *memory)
{
    wm_ucp_mem_map_params_t params = {
        .mask = WM_UCP_MEM_MAP_ADDRESS | WM_UCP_MEM_MAP_LENGTH
                | WM_UCP_MEM_MAP_MEMORY_TYPE,
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's address
        .address = (void *)memory->base,
        .length = memory->size,
        .memory_type = WM_UCS_MEMORY_CUDA,
    };
    one->buffer_id = memory->buffer_id;
    one->base = memory->base;
    one->device = memory->device;
    if (wm_ucx.ucp_mem_map(context, &params, &one->handle) != WM_UCS_OK)
        one->handle = NULL;
}

wm_ucx_memory_t *
wm_ucx_memory_acquire(void *in, const wm_pointer_t *memory)
{
    if (memory->buffer_id == 0 || memory->base == 0 || memory->size == 0)
        return NULL;
    wm_lock(&lock);
    context = in;
    wm_ucx_memory_t *one = memory_find(memory);
    if (one != NULL && one->buffer_id == 0)
        memory_register(one, memory);
    if (one != NULL)
        one->used = ++uses;
    if (one != NULL && one->handle != NULL)
        ++one->users;
    else
        one = NULL;
    pthread_mutex_unlock(&lock);
    return one;
}

void
wm_ucx_memory_release(wm_ucx_memory_t *memory)
{
    wm_lock(&lock);
    --memory->users;
    pthread_mutex_unlock(&lock);
}

void *
wm_ucx_memory_handle(const wm_ucx_memory_t *memory)
{
    return memory->handle;
}

void
wm_ucx_memory_forget(uint64_t buffer_id)
{
    wm_lock(&lock);
    for (wm_ucx_memory_t *one = kept; one < kept + KEPT && context != NULL;
         ++one)
        if (one->buffer_id == buffer_id && buffer_id != 0)
            memory_end(one);
    pthread_mutex_unlock(&lock);
}

void
wm_ucx_memory_close(void)
{
    wm_lock(&lock);
    for (wm_ucx_memory_t *one = kept; one < kept + KEPT && context != NULL;
         ++one)
        if (one->buffer_id != 0)
            memory_end(one);
    context = NULL;
    pthread_mutex_unlock(&lock);
}
