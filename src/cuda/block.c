// SPDX-License-Identifier: BSD-3-Clause
// Device memory: policy and driver calls over the bookkeeping of heap.c. A
// driver call that may wait for the device (freeing memory does) is made
// without a heap's lock, so that work that a waiting device depends on can go
// on; and never while a stream may be waiting for another process.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/driver.h"
#include "cuda/freeing.h"
#include "cuda/heap.h"
#include "cuda/list.h"
#include "cuda/lock.h"
#include "cuda/spill.h"

#define SLAB_SIZE ((size_t)16 << 20)
#define SLAB_BLOCK_MAX ((size_t)4 << 20) // larger blocks are their own region
#define SINGLE_ALIGN ((size_t)2 << 20)   // the driver's own granularity
#define KEEP_FRACTION 8                  // fraction of a device kept idle
// A query of an event costs 1.2 us. Pending frees are queried only if no free
// block fits, or if there are many: then a few, oldest first.
#define PENDING_MANY 32
#define PENDING_POLLED 2
// An allocation without room waits this many turns for streams that wait for
// other processes: five seconds, not counting the time in which the process is
// stopped.
#define NAP_NS 100000
#define NAPS 50000
#define WAITS                                                                 \
    "; a stream waits for another rank, and until the stream goes on no "     \
    "memory can be given back: synchronize the stream first"

typedef struct {
    pthread_mutex_t lock;
    wm_heap_t heap;
    wm_block_t *pending_first, *pending_last; // oldest first
    int pending_count;
    size_t driver_calls;
} memory_t;

static memory_t memories[WM_MAX_DEVICES] = {
    [0 ... WM_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};
static bool (*_Atomic reclaim_hook)(int device);
static void (*_Atomic freeing_hook)(uint64_t buffer_id);
static bool (*_Atomic waits_hook)(bool urgent);
static bool (*_Atomic turn_hook)(unsigned turn);
static _Atomic bool kept; // more memory is idle than should be

static size_t
round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

// Returns true if all of the block's events have happened. Releases those that
// have. An event that cannot be queried, because its context is lost, counts
// as happened.
static bool
events_happened(wm_block_t *block)
{
    while (block->pending_count > 0) {
        wm_pending_t *last = &block->pending[block->pending_count - 1];
        bool done;
        if (wm_event_done(last->device, last->event, &done, NULL) == 0
            && !done)
            return false;
        wm_event_release(last->device, last->event);
        block->pending_count--;
    }
    free(block->pending);
    block->pending = NULL;
    return true;
}

static void
pending_append(memory_t *memory, wm_block_t *block)
{
    WM_LIST_APPEND(memory->pending_first, memory->pending_last, block);
    memory->pending_count++;
}

static void
pending_remove(memory_t *memory, wm_block_t *block)
{
    WM_LIST_REMOVE(memory->pending_first, memory->pending_last, block);
    memory->pending_count--;
}

// Gives back a block that nobody uses any more.
static void
block_end_lock_held(memory_t *memory, wm_block_t *block)
{
    wm_region_t *region = block->region;
    if (!region->on_host) {
        wm_heap_free(&memory->heap, block);
        return;
    }
    wm_pinned_put((void *)region->facts.base);
    wm_region_free(region);
}

// Gives pending frees whose events have happened to the heap.
static void
poll_all_lock_held(memory_t *memory)
{
    wm_block_t *block = memory->pending_first;
    while (block != NULL) {
        wm_block_t *next = block->next;
        if (events_happened(block)) {
            pending_remove(memory, block);
            block_end_lock_held(memory, block);
        }
        block = next;
    }
}

static void
poll_some_lock_held(memory_t *memory)
{
    for (int i = 0; i < PENDING_POLLED; i++) {
        wm_block_t *block = memory->pending_first;
        if (memory->pending_count < PENDING_MANY || !events_happened(block))
            return;
        pending_remove(memory, block);
        block_end_lock_held(memory, block);
    }
}

// Takes one idle region to be given back. Returns NULL if at most `bound`
// bytes are idle, or if a stream might keep the driver waiting for ever.
static wm_region_t *
block_spare_lock_held(memory_t *memory, size_t bound, bool keep_slab,
                      bool urgent)
{
    if (memory->heap.idle_bytes <= bound)
        return NULL;
    if (wm_memory_would_wait(urgent)) {
        wm_memory_keep();
        return NULL;
    }
    return wm_heap_spare(&memory->heap, keep_slab);
}

static void
return_region(int device, wm_region_t *region)
{
    void (*freeing)(uint64_t) = atomic_load(&freeing_hook);
    if (freeing != NULL)
        freeing(region->facts.buffer_id);
    (void)!WM_CU_ON(device, NULL, MemFree, (CUdeviceptr)region->facts.base);
    wm_region_free(region);
}

// Gives idle regions back until at most `bound` bytes are idle; keeps the last
// slab if `keep_slab`. `urgent`: an allocation has no room.
static void
return_idle(int device, size_t bound, bool keep_slab, bool urgent)
{
    memory_t *memory = &memories[device];
    wm_region_t *region;
    do {
        wm_freeing_begin();
        wm_lock(&memory->lock);
        region = block_spare_lock_held(memory, bound, keep_slab, urgent);
        pthread_mutex_unlock(&memory->lock);
        if (region != NULL)
            return_region(device, region);
        wm_freeing_end();
    } while (region != NULL);
}

static void
trim(int device, size_t bound, bool urgent)
{
    memory_t *memory = &memories[device];
    wm_lock(&memory->lock);
    poll_all_lock_held(memory);
    pthread_mutex_unlock(&memory->lock);
    return_idle(device, bound, bound > 0, urgent);
}

// Waits until a pending free has happened, or no stream waits for another
// process, so that idle memory can be given back. Returns false if there is
// nothing to wait for, or the wait was long enough.
static bool
wait_for_room(int device, unsigned *naps)
{
    memory_t *memory = &memories[device];
    bool waited = wm_memory_would_wait(true);
    for (;;) {
        wm_lock(&memory->lock);
        int before = memory->pending_count;
        poll_all_lock_held(memory);
        int pending = memory->pending_count;
        pthread_mutex_unlock(&memory->lock);
        bool waits = wm_memory_would_wait(true);
        if (pending < before || (waited && !waits))
            return true;
        if (waits ? !wm_memory_wait_a_turn(naps) : pending == 0)
            return false;
        if (!waits)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

// Fails without a driver allocation if a stream waits for another process and
// the device has less than `size` bytes free. The driver itself would first
// wait for all streams, if any library has a pool of cuMemAllocAsync.
static int
check_room(int device, size_t size, wm_error_t *err)
{
    size_t left, total;
    if (!wm_memory_would_wait(true))
        return 0;
    int status = wm_device_memory(device, &left, &total, err);
    if (status == 0 && left < size)
        status = wm_error_set(err, WM_ERR_MEMORY, CUDA_ERROR_OUT_OF_MEMORY,
                              "there is no room");
    return status;
}

// Allocates one region from the driver, and describes it; not in the heap yet.
static int
region_alloc(int device, size_t size, bool slab, wm_region_t **region,
             wm_error_t *err)
{
    wm_scope_t scope;
    CUdeviceptr ptr;
    wm_pointer_t facts;
    int status = check_room(device, size, err);
    if (status == 0)
        status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    status = WM_CU(err, MemAlloc, &ptr, size);
    if (status == 0) {
        status = wm_pointer_describe((void *)ptr, &facts, err);
        if (status == 0) {
            // The requested size, without the driver's rounding.
            facts.base = (uintptr_t)ptr;
            facts.size = size;
            facts.device = device;
            *region = wm_region_new(&facts, slab);
            if (*region == NULL) {
                status = wm_error_set(err, WM_ERR_MEMORY, 0,
                                      "out of host memory");
            }
        }
        if (status < 0)
            wm_cu.MemFree(ptr);
    }
    wm_device_leave(&scope);
    return status;
}

static wm_block_t *
block_of_heap(memory_t *memory, size_t size, bool slab, bool poll_all)
{
    wm_lock(&memory->lock);
    if (poll_all)
        poll_all_lock_held(memory);
    else
        poll_some_lock_held(memory);
    wm_block_t *block = wm_heap_alloc(&memory->heap, size, slab);
    pthread_mutex_unlock(&memory->lock);
    return block;
}

// Takes a block from kept or freed memory, else from a new region. Fails with
// WM_ERR_MEMORY if the driver has no memory.
static int
block_grow(int device, size_t size, bool slab, size_t region_size,
           wm_block_t **block, wm_error_t *err)
{
    memory_t *memory = &memories[device];
    wm_block_t *found = block_of_heap(memory, size, slab, true);
    if (found != NULL) {
        *block = found;
        return 0;
    }
    wm_region_t *region = NULL;
    int status = region_alloc(device, region_size, slab, &region, err);
    if (status < 0)
        return status;
    // Added and taken under one lock, or another thread could take the block.
    wm_lock(&memory->lock);
    wm_heap_add(&memory->heap, region);
    memory->driver_calls++;
    *block = wm_heap_alloc(&memory->heap, size, slab);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static int
out_of_memory(int device, size_t size, wm_error_t *err)
{
    memory_t *memory = &memories[device];
    size_t left = 0, total = 0;
    (void)!wm_device_memory(device, &left, &total, NULL);
    wm_lock(&memory->lock);
    size_t held = memory->heap.bytes;
    size_t used = memory->heap.used_bytes;
    pthread_mutex_unlock(&memory->lock);
    return wm_error_set(err, WM_ERR_MEMORY, CUDA_ERROR_OUT_OF_MEMORY,
                        "allocating %zu bytes on cuda:%d: %s; %zu of %zu "
                        "bytes are free, warpmpi holds %zu and uses %zu of "
                        "them%s",
                        size, device, err->text, left, total, held, used,
                        wm_memory_would_wait(true) ? WAITS : "");
}

int
wm_block_alloc(int device, size_t size, wm_block_t **block, wm_error_t *err)
{
    wm_error_t local;
    const wm_device_t *facts;
    err = err != NULL ? err : &local;
    // Also checks that the ordinal is a valid index.
    if (wm_device_get(device, &facts, err) < 0)
        return err->code;
    if (size > SIZE_MAX / 2) {
        wm_error_set(err, WM_ERR_MEMORY, CUDA_ERROR_OUT_OF_MEMORY,
                     "more than any device has");
        return out_of_memory(device, size, err);
    }
    bool slab = size <= SLAB_BLOCK_MAX;
    size_t need = round_up(size > 0 ? size : 1,
                           slab ? WM_MEMORY_ALIGN : SINGLE_ALIGN);
    size_t region_size = slab ? SLAB_SIZE : need;
    wm_block_t *found = block_of_heap(&memories[device], need, slab, false);
    if (found != NULL) {
        *block = found;
        return 0;
    }
    trim(device, facts->total_memory / KEEP_FRACTION, false);
    int status = block_grow(device, need, slab, region_size, block, err);
    if (status == WM_ERR_MEMORY) {
        trim(device, 0, true);
        status = block_grow(device, need, slab, region_size, block, err);
    }
    unsigned naps = 0;
    while (status == WM_ERR_MEMORY && need <= facts->total_memory
           && wait_for_room(device, &naps)) {
        trim(device, 0, true);
        status = block_grow(device, need, slab, region_size, block, err);
    }
    bool (*reclaim)(int) = atomic_load(&reclaim_hook);
    if (status == WM_ERR_MEMORY && reclaim != NULL && reclaim(device))
        status = block_grow(device, need, slab, region_size, block, err);
    if (status == WM_ERR_MEMORY && slab) {
        // No room for a slab: allocate a small region for this block alone.
        status = block_grow(device, need, slab, round_up(need, SINGLE_ALIGN),
                            block, err);
    }
    if (status == WM_ERR_MEMORY)
        return out_of_memory(device, size, err);
    if (status < 0) {
        return wm_error_context(err, "allocating %zu bytes on cuda:%d", size,
                                device);
    }
    return 0;
}

static void
take_events(wm_block_t *block, int count, const CUevent *events,
            const int *devices)
{
    if (count > 0)
        block->pending = malloc((size_t)count * sizeof(*block->pending));
    for (int i = 0; i < count; i++) {
        if (block->pending != NULL) {
            block->pending[block->pending_count++] = (wm_pending_t){
                events[i], devices[i]};
        }
        else {
            (void)!wm_event_synchronize(devices[i], events[i], NULL);
            wm_event_release(devices[i], events[i]);
        }
    }
}

void
wm_block_free(wm_block_t *block, int count, const CUevent *events,
              const int *devices)
{
    // In a forked child the memory is the parent's.
    if (block == NULL || wm_driver_forked())
        return;
    int device = block->region->facts.device;
    memory_t *memory = &memories[device];
    const wm_device_t *facts;
    size_t bound = 0;
    if (wm_device_describe(device, &facts, NULL) == 0)
        bound = facts->total_memory / KEEP_FRACTION;
    void *held = wm_gil_release();
    take_events(block, count, events, devices);
    wm_lock(&memory->lock);
    if (!block->region->on_host)
        wm_heap_retire(&memory->heap, block);
    bool pending = block->pending_count > 0;
    if (pending)
        pending_append(memory, block);
    else
        block_end_lock_held(memory, block);
    bool over = !pending && memory->heap.idle_bytes > bound;
    pthread_mutex_unlock(&memory->lock);
    if (over)
        return_idle(device, bound, true, false);
    wm_gil_retake(held);
}

int
wm_block_spill(int device, size_t size, wm_block_t **block, wm_error_t *err)
{
    void *memory;
    int status = wm_pinned_alloc(size, &memory, err);
    if (status < 0)
        return status;
    const wm_pointer_t facts = {
        .kind = WM_MEMORY_DEVICE,
        .device = device,
        .base = (uintptr_t)memory,
        .size = size,
    };
    wm_region_t *region = wm_region_new(&facts, false);
    if (region == NULL) {
        wm_pinned_put(memory);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    region->on_host = true;
    *block = region->first;
    return 0;
}

void *
wm_block_pointer(const wm_block_t *block)
{
    return (void *)(block->region->facts.base + block->offset);
}

size_t
wm_block_size(const wm_block_t *block)
{
    return block->size;
}

void
wm_block_describe(const wm_block_t *block, wm_pointer_t *pointer)
{
    *pointer = block->region->facts;
}

void
wm_memory_trim(int device)
{
    if (wm_driver_forked())
        return;
    int count = wm_device_count();
    for (int i = 0; i < count; i++)
        if (device == i || device == -1)
            trim(i, 0, true);
}

void
wm_memory_return_kept(void)
{
    const wm_device_t *facts;
    if (!atomic_load_explicit(&kept, memory_order_relaxed)
        || wm_driver_forked() || wm_memory_would_wait(false))
        return;
    atomic_store(&kept, false);
    for (int i = 0; i < wm_device_count(); i++)
        if (wm_device_describe(i, &facts, NULL) == 0)
            trim(i, facts->total_memory / KEEP_FRACTION, false);
    wm_pinned_trim();
}

void
wm_memory_set_reclaim(bool (*reclaim)(int device))
{
    atomic_store(&reclaim_hook, reclaim);
}

void
wm_memory_set_freeing(void (*freeing)(uint64_t buffer_id))
{
    atomic_store(&freeing_hook, freeing);
}

void
wm_memory_set_waits(bool (*waits)(bool urgent), bool (*turn)(unsigned turn))
{
    atomic_store(&waits_hook, waits);
    atomic_store(&turn_hook, turn);
}

bool
wm_memory_would_wait(bool urgent)
{
    bool (*waits)(bool) = atomic_load(&waits_hook);
    return waits != NULL && waits(urgent);
}

bool
wm_memory_wait_a_turn(unsigned *naps)
{
    bool (*turn)(unsigned) = atomic_load(&turn_hook);
    if (*naps == NAPS || (turn != NULL && !turn(*naps)))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    ++*naps;
    return true;
}

void
wm_memory_keep(void)
{
    atomic_store(&kept, true);
}

void
wm_memory_stats(wm_memory_stats_t *stats)
{
    *stats = (wm_memory_stats_t){0};
    for (int i = 0; i < WM_MAX_DEVICES && !wm_driver_forked(); i++) {
        memory_t *memory = &memories[i];
        wm_lock(&memory->lock);
        stats->device_bytes += memory->heap.bytes;
        stats->device_bytes_used += memory->heap.used_bytes;
        stats->blocks += memory->heap.used_blocks;
        stats->device_allocations += memory->driver_calls;
        pthread_mutex_unlock(&memory->lock);
    }
    wm_pinned_stats(stats);
}
