// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "array/array.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/lock.h"

#define HOST_ALIGN 64
#define MAX_EVENTS 16

// Storages without references whose memory is still in use, while a stream may
// wait for another process. Linked by `next`.
static pthread_mutex_t lingering_lock = PTHREAD_MUTEX_INITIALIZER;
static wm_storage_t *_Atomic lingering;

static int
storage_alloc(wm_storage_t *storage, int device, bool pinned, wm_error_t *err)
{
    if (device >= 0) {
        int status = wm_block_alloc(device, storage->size, &storage->block,
                                    err);
        if (status == 0) {
            storage->ptr = wm_block_pointer(storage->block);
            wm_block_describe(storage->block, &storage->memory);
        }
        return status;
    }
    storage->memory = (wm_pointer_t){
        .kind = pinned ? WM_MEMORY_PINNED : WM_MEMORY_HOST, .device = -1};
    if (pinned)
        return wm_pinned_alloc(storage->size, &storage->ptr, err);
    size_t size = storage->size > 0 ? storage->size : 1;
    return posix_memalign(&storage->ptr, HOST_ALIGN, size) == 0
               ? 0
               : wm_error_set(err, WM_ERR_MEMORY, 0,
                              "out of host memory: %zu bytes asked for", size);
}

static int
storage_begin(size_t size, bool ordered, wm_storage_t **storage,
              wm_error_t *err)
{
    wm_storage_t *made = calloc(1, sizeof(*made));
    if (made != NULL && ordered)
        made->order = wm_order_new();
    if (made == NULL || (ordered && made->order == NULL)) {
        free(made);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    made->size = size;
    atomic_init(&made->others, -1);
    atomic_init(&made->references, 1);
    *storage = made;
    return 0;
}

// Makes a storage of `size` bytes on `device` (-1: host, pinned or pageable).
static int
storage_new(int device, bool pinned, size_t size, wm_storage_t **storage,
            wm_error_t *err)
{
    wm_storage_t *made;
    wm_storage_free_kept();
    int status = storage_begin(size, device >= 0 || pinned, &made, err);
    if (status < 0)
        return status;
    status = storage_alloc(made, device, pinned, err);
    if (status < 0) {
        wm_order_free(made->order);
        free(made);
        return status;
    }
    *storage = made;
    return 0;
}

int
wm_storage_wrap(void *ptr, size_t size, const wm_pointer_t *memory, int others,
                bool readonly, void *owner, void (*release)(void *),
                wm_storage_t **storage, wm_error_t *err)
{
    wm_storage_t *made;
    bool ordered = memory->kind != WM_MEMORY_HOST || others >= 0;
    int status = storage_begin(size, ordered, &made, err);
    if (status < 0)
        return status;
    made->ptr = ptr;
    made->memory = *memory;
    made->readonly = readonly;
    atomic_init(&made->others, others);
    made->owner = owner;
    made->release = release;
    *storage = made;
    return 0;
}

void
wm_storage_give_away(wm_storage_t *storage)
{
    int device = storage->memory.device;
    if (storage->memory.kind == WM_MEMORY_PINNED)
        device = wm_pointer_home(storage->ptr);
    if (device >= 0)
        atomic_store(&storage->others, device);
}

wm_storage_t *
wm_storage_retain(wm_storage_t *storage)
{
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
    return storage;
}

// Returns true if our pending work still uses the memory. Blocks of device
// memory are freed in stream order and need no wait.
static bool
is_in_use(const wm_storage_t *storage)
{
    bool idle = false;
    return storage->block == NULL
           && (wm_order_idle(storage->order, true, &idle, NULL) < 0 || !idle);
}

static void
array_free_memory(wm_storage_t *storage)
{
    if (storage->block != NULL) {
        CUevent events[MAX_EVENTS];
        int devices[MAX_EVENTS];
        int count = wm_order_detach(storage->order, MAX_EVENTS, events,
                                    devices);
        wm_block_free(storage->block, count, events, devices);
    }
    else if (storage->release != NULL)
        storage->release(storage->owner);
    else if (storage->memory.kind == WM_MEMORY_PINNED)
        wm_pinned_free(storage->ptr);
    else
        free(storage->ptr);
}

static void
storage_free(wm_storage_t *storage)
{
    array_free_memory(storage);
    wm_order_free(storage->order);
    free(storage);
}

static void
linger(wm_storage_t *storage)
{
    wm_lock(&lingering_lock);
    storage->next = atomic_load(&lingering);
    atomic_store(&lingering, storage);
    pthread_mutex_unlock(&lingering_lock);
}

static void
free_lingering(void)
{
    wm_lock(&lingering_lock);
    wm_storage_t *storage = atomic_exchange(&lingering, NULL);
    pthread_mutex_unlock(&lingering_lock);
    while (storage != NULL) {
        wm_storage_t *next = storage->next;
        if (is_in_use(storage))
            linger(storage);
        else
            storage_free(storage);
        storage = next;
    }
}

void
wm_storage_free_kept(void)
{
    if (atomic_load_explicit(&lingering, memory_order_relaxed) != NULL
        && !wm_driver_forked())
        free_lingering();
    wm_memory_return_kept();
}

void
wm_storage_release(wm_storage_t *storage)
{
    if (storage == NULL
        || atomic_fetch_sub_explicit(&storage->references, 1,
                                     memory_order_acq_rel)
               != 1)
        return;
    if (is_in_use(storage)) {
        if (wm_memory_would_wait(true)) {
            linger(storage);
            return;
        }
        void *held = wm_gil_release();
        (void)!wm_order_wait(storage->order, true, NULL);
        wm_gil_retake(held);
    }
    storage_free(storage);
}

// Fills row-major strides for the shape, and writes the bytes it takes.
static int
array_lay_out(wm_dtype_t dtype, int ndim, const int64_t *shape,
              wm_array_t *array, size_t *size, wm_error_t *err)
{
    if (ndim < 0 || ndim > WM_MAX_NDIM) {
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "%d dimensions: at most %d are supported", ndim,
                            WM_MAX_NDIM);
    }
    // An extent of 0 counts as 1, so that the strides stay meaningful.
    int64_t bytes = wm_dtype_info(dtype)->itemsize;
    bool empty = false;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] < 0) {
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "shape: negative extent %lld in dimension "
                                "%d",
                                (long long)shape[i], i);
        }
        array->shape[i] = shape[i];
        array->strides[i] = bytes;
        empty |= shape[i] == 0;
        int64_t extent = shape[i] > 0 ? shape[i] : 1;
        if (__builtin_mul_overflow(bytes, extent, &bytes)) {
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "shape: the array is too large: its size in "
                                "bytes exceeds 63 bits");
        }
    }
    array->ndim = ndim;
    array->dtype = dtype;
    *size = empty ? 0 : (size_t)bytes;
    return 0;
}

int
wm_array_new(int device, bool pinned, wm_dtype_t dtype, int ndim,
             const int64_t *shape, wm_array_t *array, wm_error_t *err)
{
    wm_array_t made;
    size_t size;
    int status = array_lay_out(dtype, ndim, shape, &made, &size, err);
    pinned = pinned && wm_device_count() > 0;
    if (status == 0)
        status = storage_new(device, pinned, size, &made.storage, err);
    if (status < 0)
        return status;
    made.data = made.storage->ptr;
    made.readonly = false;
    wm_array_copy_header(array, &made);
    return 0;
}

void
wm_array_copy_header(wm_array_t *dst, const wm_array_t *src)
{
    memcpy(dst, src, offsetof(wm_array_t, shape));
    size_t used = (size_t)src->ndim * sizeof(int64_t);
    memcpy(dst->shape, src->shape, used);
    memcpy(dst->strides, src->strides, used);
}

void
wm_array_clear(wm_array_t *array)
{
    wm_storage_t *storage = array->storage;
    array->storage = NULL;
    array->data = NULL;
    wm_storage_release(storage);
}

int64_t
wm_array_count(const wm_array_t *array)
{
    int64_t count = 1;
    for (int i = 0; i < array->ndim; i++)
        count *= array->shape[i];
    return count;
}

size_t
wm_array_nbytes(const wm_array_t *array)
{
    return (size_t)wm_array_count(array)
           * wm_dtype_info(array->dtype)->itemsize;
}

// Returns true if the dimensions from `first` on, in steps of `step`, are
// dense.
static bool
is_dense(const wm_array_t *array, int first, int step)
{
    int64_t expected = wm_dtype_info(array->dtype)->itemsize;
    bool dense = true;
    for (int i = 0, at = first; i < array->ndim; i++, at += step) {
        if (array->shape[at] == 0)
            return true;
        dense &= array->shape[at] == 1 || array->strides[at] == expected;
        expected *= array->shape[at];
    }
    return dense;
}

bool
wm_array_is_contiguous(const wm_array_t *array)
{
    return is_dense(array, array->ndim - 1, -1);
}

bool
wm_array_is_f_contiguous(const wm_array_t *array)
{
    return is_dense(array, 0, 1);
}

void
wm_array_extent(const wm_array_t *array, char **low, size_t *length)
{
    char *bottom = array->data;
    size_t bytes = wm_dtype_info(array->dtype)->itemsize;
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] == 0) {
            *low = array->data;
            *length = 0;
            return;
        }
        int64_t reach = (array->shape[i] - 1) * array->strides[i];
        if (reach < 0) {
            bottom += reach;
            reach = -reach;
        }
        bytes += (size_t)reach;
    }
    *low = bottom;
    *length = bytes;
}

void
wm_array_producer(const wm_array_t *array, wm_producer_t *producer)
{
    const wm_storage_t *storage = array->storage;
    *producer = (wm_producer_t){.kind = WM_PRODUCER_NONE, .device = -1};
    if (storage == NULL || storage->order == NULL)
        return;
    producer->kind = WM_PRODUCER_ORDER;
    producer->order = storage->order;
    int others = atomic_load_explicit(&storage->others, memory_order_relaxed);
    if (others >= 0) {
        producer->kind = WM_PRODUCER_DEVICE;
        producer->device = others;
    }
}

int
wm_array_memory(const wm_array_t *array, wm_pointer_t *memory, wm_error_t *err)
{
    if (array->storage != NULL) {
        *memory = array->storage->memory;
        return 0;
    }
    return wm_pointer_describe(array->data, memory, err);
}
