// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/stream.h"

#include <string.h>

#include "cuda/event.h"
#include "cuda/lock.h"

// A pool keeps the streams given back, oldest first. Streams that do not fit
// are destroyed, which the driver does once their work has ended.
#define POOL_ROOM 32
// Up to this number, a stream is made if those in the pool are busy. Past some
// number (the 35th of a process, measured on CUDA 13) the driver waits until
// the device is idle before it makes a stream, which is worse than to queue
// behind other work.
#define POOL_GROWTH 24
// Copies of messages go before the program's kernels; the driver limits this
// to the highest priority of the device.
#define POOL_PRIORITY -100
// The number of streams asked whether they are idle, at 1.2 us each.
#define POOL_TRIES 4

typedef struct {
    CUstream stream;
    bool idle; // known to be idle
} entry_t;

typedef struct {
    pthread_mutex_t lock;
    int made; // in the pool or handed out
    int count;
    entry_t entries[POOL_ROOM];
    CUstream last;   // handed out last: not in the pool if the pool is empty
    CUstream shared; // has several owners; NULL: none
    int sharers;     // owners of `shared` besides the first
} pool_t;

static pool_t pools[WM_MAX_DEVICES] = {
    [0 ... WM_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

// A lower number is a higher priority; 0 is the default.
static int
create(int device, int priority, CUstream *stream, wm_error_t *err)
{
    CUstream made;
    int status = WM_CU_ON_OR(
        device, err,
        wm_error_context(err, "making a stream on cuda:%d", device),
        StreamCreateWithPriority, &made, CU_STREAM_NON_BLOCKING, priority);
    if (status == 0)
        *stream = made;
    return status;
}

int
wm_stream_create(int device, CUstream *stream, wm_error_t *err)
{
    return create(device, 0, stream, err);
}

void
wm_stream_destroy(int device, CUstream stream)
{
    (void)!WM_CU_ON(device, NULL, StreamDestroy, stream);
}

// Sets *done to true if the stream is idle. A query of a stream that is being
// captured would spoil the capture, hence the first call; such a stream counts
// as busy.
static CUresult
stream_query(CUstream stream, bool *done)
{
    CUstreamCaptureStatus capture;
    CUresult result = wm_cu.StreamIsCapturing(stream, &capture);
    *done = false;
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return result;
    result = wm_cu.StreamQuery(stream);
    *done = result == CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

static CUstream
pool_remove_lock_held(pool_t *pool, int at)
{
    CUstream stream = pool->entries[at].stream;
    pool->count--;
    memmove(&pool->entries[at], &pool->entries[at + 1],
            (size_t)(pool->count - at) * sizeof(entry_t));
    return stream;
}

// Takes an idle stream out of the pool: the one given back last, which is
// likeliest to be warm, or one of the oldest, which are likeliest to be idle.
// If all are busy and enough were made, takes the oldest: work behind its
// pending work is not blocked, as every pool stream waits only for submitted
// work. Returns NULL if a stream is to be made.
static CUstream
stream_find_lock_held(pool_t *pool)
{
    for (int i = 0; i < POOL_TRIES && i < pool->count; i++) {
        int at = i == 0 ? pool->count - 1 : i - 1;
        bool done = pool->entries[at].idle;
        if (done
            || (stream_query(pool->entries[at].stream, &done) == CUDA_SUCCESS
                && done))
            return pool_remove_lock_held(pool, at);
    }
    if (pool->count > 0 && pool->made >= POOL_GROWTH)
        return pool_remove_lock_held(pool, 0);
    pool->made++;
    return NULL;
}

// Takes the stream given back last, if it is known to be idle. Needs no driver
// call, and the device need not be entered.
static CUstream
acquire_idle(int device)
{
    CUstream found = NULL;
    if (device < 0 || device >= WM_MAX_DEVICES || wm_driver_forked())
        return NULL;
    pool_t *pool = &pools[device];
    wm_lock(&pool->lock);
    if (pool->count > 0 && pool->entries[pool->count - 1].idle)
        found = pool->last = pool_remove_lock_held(pool, pool->count - 1);
    pthread_mutex_unlock(&pool->lock);
    return found;
}

// Finds a stream that exists, when the device has no memory for a new one: a
// busy one, one that has an owner, or else the legacy default stream, as a
// message that has come must be taken.
static CUstream
stream_find_any_lock_held(pool_t *pool)
{
    if (pool->count > 0)
        return pool_remove_lock_held(pool, 0);
    if (pool->last == NULL)
        return CU_STREAM_LEGACY;
    if (pool->shared == NULL) {
        pool->shared = pool->last;
        pool->sharers = 0;
    }
    pool->sharers++;
    return pool->shared;
}

int
wm_stream_acquire(int device, CUstream *stream, wm_error_t *err)
{
    wm_scope_t scope;
    CUstream found = acquire_idle(device);
    if (found != NULL) {
        *stream = found;
        return 0;
    }
    int status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    pool_t *pool = &pools[device];
    wm_lock(&pool->lock);
    found = stream_find_lock_held(pool);
    if (found != NULL)
        pool->last = found;
    pthread_mutex_unlock(&pool->lock);
    wm_device_leave(&scope);
    if (found != NULL) {
        *stream = found;
        return 0;
    }
    status = create(device, POOL_PRIORITY, &found, err);
    wm_lock(&pool->lock);
    if (status < 0)
        pool->made--;
    if (status == WM_ERR_MEMORY) {
        found = stream_find_any_lock_held(pool);
        status = 0;
    }
    if (status == 0 && found != CU_STREAM_LEGACY)
        pool->last = found;
    pthread_mutex_unlock(&pool->lock);
    if (status == 0)
        *stream = found;
    return status;
}

// Removes one owner. Returns true if other owners remain, or the stream is not
// the pool's.
static bool
leave_stream_lock_held(pool_t *pool, CUstream stream)
{
    if (stream == CU_STREAM_LEGACY)
        return true;
    if (stream != pool->shared)
        return false;
    if (pool->sharers-- > 0)
        return true;
    pool->shared = NULL;
    return false;
}

static void
stream_give_back(int device, CUstream stream, bool idle)
{
    if (wm_driver_forked())
        return;
    pool_t *pool = &pools[device];
    wm_lock(&pool->lock);
    idle = idle && stream != pool->shared; // other owners gave it work
    if (leave_stream_lock_held(pool, stream)) {
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    bool kept = pool->count < POOL_ROOM;
    if (kept)
        pool->entries[pool->count++] = (entry_t){stream, idle};
    else
        pool->made--;
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        wm_stream_destroy(device, stream);
}

void
wm_stream_release(int device, CUstream stream)
{
    stream_give_back(device, stream, false);
}

void
wm_stream_release_idle(int device, CUstream stream)
{
    stream_give_back(device, stream, true);
}

// Finds the context of a stream. Some drivers want a context to be current:
// any existing one will do.
static CUresult
context_of(CUstream stream, CUcontext *context)
{
    CUresult result = wm_cu.StreamGetCtx(stream, context);
    int count = wm_device_count();
    for (int i = 0; i < count && result == CUDA_ERROR_INVALID_CONTEXT; i++) {
        bool active;
        wm_scope_t scope;
        if (wm_device_active(i, &active, NULL) == 0 && active
            && wm_device_enter(i, &scope, NULL) == 0) {
            result = wm_cu.StreamGetCtx(stream, context);
            wm_device_leave(&scope);
        }
    }
    return result;
}

int
wm_stream_device(CUstream stream, int *ordinal, wm_error_t *err)
{
    int status = wm_driver_load(err);
    if (status < 0)
        return status;
    // A default stream belongs to the current context, or to none.
    bool any = wm_stream_is_default(stream);
    CUcontext context = NULL;
    CUresult result = any ? wm_cu.CtxGetCurrent(&context)
                          : context_of(stream, &context);
    status = wm_cu_check(result, "cuStreamGetCtx(stream, &context)", err);
    if (status < 0) {
        return wm_error_context(err, "finding the device of stream %p",
                                (void *)stream);
    }
    int found = context != NULL ? wm_device_of_context(context) : -1;
    if (found < 0) {
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "stream %p belongs to no visible device",
                            (void *)stream);
    }
    *ordinal = found;
    return 0;
}

uint64_t
wm_stream_id(int device, CUstream stream)
{
    unsigned long long id = 0;
    wm_scope_t scope;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return UINT64_MAX; // the device's legacy stream
    if (stream == CU_STREAM_PER_THREAD || wm_cu.StreamGetId == NULL
        || wm_device_enter(device, &scope, NULL) < 0)
        return 0;
    CUresult result = wm_cu.StreamGetId(stream, &id);
    wm_device_leave(&scope);
    return result == CUDA_SUCCESS ? id : 0;
}

// Names the stream in an error.
static int
stream_context(int device, CUstream stream, wm_error_t *err)
{
    return wm_error_context(err, "stream %p of cuda:%d", (void *)stream,
                            device);
}

int
wm_stream_idle(int device, CUstream stream, bool *idle, wm_error_t *err)
{
    wm_scope_t scope;
    int status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    bool done;
    CUresult result = stream_query(stream, &done);
    wm_device_leave(&scope);
    if (result != CUDA_SUCCESS) {
        (void)!wm_cu_check(result, "cuStreamQuery(stream)", err);
        return stream_context(device, stream, err);
    }
    *idle = done;
    return 0;
}

int
wm_stream_spin(int device, CUstream stream, int tries, bool *idle,
               wm_error_t *err)
{
    wm_scope_t scope;
    int status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    CUresult result = CUDA_ERROR_NOT_READY;
    while (tries-- > 0 && result == CUDA_ERROR_NOT_READY)
        result = wm_cu.StreamQuery(stream);
    wm_device_leave(&scope);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        (void)!wm_cu_check(result, "cuStreamQuery(stream)", err);
        return stream_context(device, stream, err);
    }
    *idle = result == CUDA_SUCCESS;
    return 0;
}

int
wm_stream_synchronize(int device, CUstream stream, wm_error_t *err)
{
    return WM_CU_ON_OR(device, err, stream_context(device, stream, err),
                       StreamSynchronize, stream);
}

static CUstream
normalized(CUstream stream)
{
    return stream == NULL ? CU_STREAM_LEGACY : stream;
}

int
wm_stream_follow(int device, CUstream stream, int other_device, CUstream other,
                 wm_error_t *err)
{
    if (device == other_device && normalized(stream) == normalized(other))
        return 0;
    // To ask first whether there is anything to wait for takes three times as
    // long as both calls.
    CUevent event;
    int status = wm_event_acquire(other_device, &event, err);
    if (status < 0)
        return status;
    status = wm_event_record(other_device, event, other, err);
    if (status == 0)
        status = wm_stream_wait_event(device, stream, event, err);
    // The wait refers to the event as it was when the wait was submitted, so
    // the event can be recorded again.
    wm_event_release(other_device, event);
    return status;
}

int
wm_stream_wait_event(int device, CUstream stream, CUevent event,
                     wm_error_t *err)
{
    return WM_CU_ON_OR(device, err, stream_context(device, stream, err),
                       StreamWaitEvent, stream, event, CU_EVENT_WAIT_DEFAULT);
}

int
wm_stream_is_capturing(int device, CUstream stream, bool *capturing,
                       wm_error_t *err)
{
    CUstreamCaptureStatus capture;
    int status = WM_CU_ON(device, err, StreamIsCapturing, stream, &capture);
    if (status == 0)
        *capturing = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    return status;
}

int
wm_stream_capture(int device, CUstream stream, uint64_t *capture,
                  wm_error_t *err)
{
    wm_error_t own;
    err = err != NULL ? err : &own;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    int code = WM_CU_ON(device, err, StreamGetCaptureInfo, stream, &status,
                        &id, NULL, NULL, NULL);
    if (code < 0 && err->detail == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the default stream is ordered with a stream that "
                            "is being captured into a graph: use the captured "
                            "stream, or a non-blocking stream");
    if (code < 0)
        return code;
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        *capture = WM_STREAM_CAPTURE_FAILED;
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the capture of the stream into a graph has "
                            "failed: end the capture");
    }
    *capture = status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
    return 0;
}

int
wm_stream_refuse_capture(int device, CUstream stream, const char *what,
                         wm_error_t *err)
{
    bool capturing = false;
    wm_error_t own;
    err = err != NULL ? err : &own;
    int status = wm_stream_is_capturing(device, stream, &capturing, err);
    if (status < 0 && err->detail != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return status;
    if (status == 0 && !capturing)
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "%s is being captured into a graph, and this call "
                        "cannot be captured: make it before or after the "
                        "capture, or by comm.on(stream) or win.on(stream), "
                        "with the captured stream",
                        what);
}
