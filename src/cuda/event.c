// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/event.h"

#include <stdatomic.h>

#include "cuda/lock.h"

// Events given back, last in first out. Events that do not fit are destroyed.
#define POOL_ROOM 1024

// Limits the events with several owners: they are searched one by one.
#define SHARED_ROOM 64

typedef struct {
    CUevent event;
    int others; // owners besides the first
} shared_t;

typedef struct {
    pthread_mutex_t lock;
    _Atomic(CUevent) unrecorded; // made at the first query
    int count;
    CUevent events[POOL_ROOM];
    int shared_count;
    shared_t shared[SHARED_ROOM];
} pool_t;

static pool_t pools[WM_MAX_DEVICES] = {
    [0 ... WM_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

int
wm_event_create(int device, CUevent *event, wm_error_t *err)
{
    CUevent made;
    int status = WM_CU_ON_OR(
        device, err,
        wm_error_context(err, "making an event on cuda:%d", device),
        EventCreate, &made, CU_EVENT_DISABLE_TIMING);
    if (status == 0)
        *event = made;
    return status;
}

void
wm_event_destroy(int device, CUevent event)
{
    (void)!WM_CU_ON(device, NULL, EventDestroy, event);
}

int
wm_event_acquire(int device, CUevent *event, wm_error_t *err)
{
    if (device < 0 || device >= WM_MAX_DEVICES || wm_driver_forked()) {
        const wm_device_t *facts;
        return wm_device_get(device, &facts, err);
    }
    pool_t *pool = &pools[device];
    CUevent found = NULL;
    wm_lock(&pool->lock);
    if (pool->count > 0)
        found = pool->events[--pool->count];
    pthread_mutex_unlock(&pool->lock);
    if (found == NULL)
        return wm_event_create(device, event, err);
    *event = found;
    return 0;
}

static shared_t *
find_shared_lock_held(pool_t *pool, CUevent event)
{
    for (int i = 0; i < pool->shared_count; ++i)
        if (pool->shared[i].event == event)
            return &pool->shared[i];
    return NULL;
}

bool
wm_event_share(int device, CUevent event)
{
    pool_t *pool = &pools[device];
    wm_lock(&pool->lock);
    shared_t *shared = find_shared_lock_held(pool, event);
    if (shared == NULL && pool->shared_count < SHARED_ROOM) {
        shared = &pool->shared[pool->shared_count++];
        *shared = (shared_t){.event = event};
    }
    if (shared != NULL)
        ++shared->others;
    pthread_mutex_unlock(&pool->lock);
    return shared != NULL;
}

// Removes one owner. Returns true if other owners remain.
static bool
leave_shared_lock_held(pool_t *pool, CUevent event)
{
    shared_t *shared = find_shared_lock_held(pool, event);
    if (shared != NULL && --shared->others == 0)
        *shared = pool->shared[--pool->shared_count];
    return shared != NULL;
}

void
wm_event_release(int device, CUevent event)
{
    if (wm_driver_forked())
        return;
    pool_t *pool = &pools[device];
    wm_lock(&pool->lock);
    bool shared = leave_shared_lock_held(pool, event);
    bool kept = shared || pool->count < POOL_ROOM;
    if (kept && !shared)
        pool->events[pool->count++] = event;
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        wm_event_destroy(device, event);
}

int
wm_event_record(int device, CUevent event, CUstream stream, wm_error_t *err)
{
    return WM_CU_ON_OR(device, err,
                       wm_error_context(err, "on stream %p of cuda:%d",
                                        (void *)stream, device),
                       EventRecord, event, stream);
}

int
wm_event_done(int device, CUevent event, bool *done, wm_error_t *err)
{
    wm_scope_t scope;
    int status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    CUresult result = wm_cu.EventQuery(event);
    wm_device_leave(&scope);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        return wm_cu_check(result, "cuEventQuery(event)", err);
    *done = result == CUDA_SUCCESS;
    return 0;
}

int
wm_event_look_for_errors(int device, wm_error_t *err)
{
    pool_t *pool = &pools[device];
    bool unused;
    int status = 0;
    CUevent none = NULL, event = atomic_load(&pool->unrecorded);
    if (event == NULL) {
        status = wm_event_create(device, &event, err);
        if (status == 0
            && !atomic_compare_exchange_strong(&pool->unrecorded, &none,
                                               event)) {
            wm_event_destroy(device, event); // another thread made one, too
            event = none;
        }
    }
    if (status < 0)
        return status == WM_ERR_MEMORY ? 0 : status;
    return wm_event_done(device, event, &unused, err);
}

bool
wm_event_has_ended(int device, CUevent event)
{
    bool done = false;
    return wm_event_done(device, event, &done, NULL) == 0
               ? done
               : wm_event_look_for_errors(device, NULL) < 0;
}

int
wm_event_synchronize(int device, CUevent event, wm_error_t *err)
{
    return WM_CU_ON(device, err, EventSynchronize, event);
}
