// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory, pooled by power-of-two size. Small blocks are cut from
// chunks, each of blocks of one size, since the driver pins whole pages and
// takes long. Larger blocks are their own allocation, and up to a bound are
// kept when freed.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "cuda/freeing.h"
#include "cuda/lock.h"
#include "cuda/spill.h"
#include "cuda/memory.h"

#define CLASS_MIN 8          // 256 bytes
#define CLASS_CHUNKED_MAX 17 // 128 KiB: larger ones stand alone
#define CLASSES 48           // 128 TiB
#define CHUNK_SIZE ((size_t)1 << 20)
#define KEEP_BYTES ((size_t)1 << 30) // of free large blocks

// Memory from the driver: one block, or a chunk of blocks of one class.
typedef struct {
    uintptr_t base;
    size_t size;
    int class;
} extent_t;

typedef struct node {
    struct node *next;
} node_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static extent_t *extents; // sorted by base
static size_t extent_count, extent_room;
static node_t *free_blocks[CLASSES]; // linked through the blocks themselves
static size_t kept_bytes;            // bytes of the large ones among them
static size_t total_bytes, used_bytes, used_blocks, driver_calls;

static int
class_of(size_t size)
{
    int class = CLASS_MIN;
    while (((size_t)1 << class) < size)
        class ++;
    return class;
}

// Returns the index of the first extent whose base is above `address`.
static size_t
extent_above(uintptr_t address)
{
    size_t low = 0, high = extent_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents[middle].base > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int
reserve_extent_lock_held(wm_error_t *err)
{
    if (extent_count < extent_room)
        return 0;
    size_t room = extent_room > 0 ? 2 * extent_room : 64;
    extent_t *grown = realloc(extents, room * sizeof(*grown));
    if (grown == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    extents = grown;
    extent_room = room;
    return 0;
}

static void
insert_extent_lock_held(const extent_t *extent)
{
    size_t at = extent_above(extent->base);
    memmove(&extents[at + 1], &extents[at],
            (extent_count - at) * sizeof(*extents));
    extents[at] = *extent;
    extent_count++;
}

static void
remove_extent_lock_held(size_t at)
{
    extent_count--;
    memmove(&extents[at], &extents[at + 1],
            (extent_count - at) * sizeof(*extents));
}

// Returns a device whose context can pin memory. The memory is portable, so
// any context will do, and none is made while one exists.
static int
any_device(void)
{
    int device = wm_device_current();
    int count = wm_device_count();
    for (int i = 0; i < count && device < 0; i++) {
        const wm_device_t *facts;
        if (wm_device_describe(i, &facts, NULL) == 0 && facts->context != NULL)
            device = i;
    }
    return device >= 0 ? device : wm_device_default();
}

static int
driver_alloc(size_t size, void **ptr, wm_error_t *err)
{
    void *made;
    int status = wm_driver_load(err);
    if (status == 0)
        status = WM_CU_ON(any_device(), err, MemHostAlloc, &made, size,
                          CU_MEMHOSTALLOC_PORTABLE
                              | CU_MEMHOSTALLOC_DEVICEMAP);
    if (status == WM_ERR_MEMORY && err != NULL)
        err->detail = 0; // the host's memory is exhausted, not a device's
    if (status == 0)
        *ptr = made;
    return status;
}

static void
driver_free(void *ptr)
{
    (void)!WM_CU_ON(any_device(), NULL, MemFreeHost, ptr);
}

static void *
pop_lock_held(int class)
{
    node_t *node = free_blocks[class];
    if (node == NULL)
        return NULL;
    free_blocks[class] = node->next;
    used_bytes += (size_t)1 << class;
    used_blocks++;
    if (class > CLASS_CHUNKED_MAX)
        kept_bytes -= (size_t)1 << class;
    return node;
}

static void
push_lock_held(void *ptr, int class)
{
    node_t *node = ptr;
    node->next = free_blocks[class];
    free_blocks[class] = node;
}

// Takes the largest of the free blocks that are their own allocation.
static void *
pinned_spare_lock_held(void)
{
    int class = CLASSES - 1;
    while (free_blocks[class] == NULL)
        class --;
    node_t *node = free_blocks[class];
    free_blocks[class] = node->next;
    kept_bytes -= (size_t)1 << class;
    total_bytes -= (size_t)1 << class;
    remove_extent_lock_held(extent_above((uintptr_t)node) - 1);
    return node;
}

// Gives large free blocks back until at most `bound` bytes of them are kept,
// or a stream might keep the driver waiting for ever. Returns true if all
// bytes beyond the bound were given back. `urgent`: an allocation has no room.
static bool
return_kept(size_t bound, bool urgent)
{
    for (;;) {
        void *spare = NULL;
        wm_freeing_begin();
        wm_lock(&lock);
        bool over = kept_bytes > bound;
        if (over && !wm_memory_would_wait(urgent))
            spare = pinned_spare_lock_held();
        pthread_mutex_unlock(&lock);
        if (spare != NULL)
            driver_free(spare);
        wm_freeing_end();
        if (spare != NULL)
            continue;
        if (over)
            wm_memory_keep();
        return !over;
    }
}

static int
pinned_grow(int class, void **ptr, wm_error_t *err)
{
    size_t unit = (size_t)1 << class;
    size_t size = class > CLASS_CHUNKED_MAX ? unit : CHUNK_SIZE;
    char *made;
    int status = driver_alloc(size, (void **)&made, err);
    wm_lock(&lock);
    bool any = kept_bytes > 0;
    pthread_mutex_unlock(&lock);
    if (status == WM_ERR_MEMORY && any) {
        unsigned naps = 0;
        while (!return_kept(0, true) && wm_memory_wait_a_turn(&naps))
            ;
        status = driver_alloc(size, (void **)&made, err);
    }
    if (status < 0)
        return status;
    wm_lock(&lock);
    status = reserve_extent_lock_held(err);
    if (status == 0) {
        extent_t extent = {(uintptr_t)made, size, class};
        insert_extent_lock_held(&extent);
        for (size_t offset = unit; offset < size; offset += unit)
            push_lock_held(made + offset, class);
        total_bytes += size;
        used_bytes += unit;
        used_blocks++;
        driver_calls++;
        *ptr = made;
    }
    pthread_mutex_unlock(&lock);
    if (status < 0)
        driver_free(made);
    return status;
}

int
wm_pinned_alloc(size_t size, void **ptr, wm_error_t *err)
{
    wm_error_t local;
    err = err != NULL ? err : &local;
    if (wm_driver_forked())
        return wm_driver_load(err);
    if (size > (size_t)1 << (CLASSES - 1)) {
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "allocating %zu bytes of pinned host memory: "
                            "more than any host has",
                            size);
    }
    int class = class_of(size);
    wm_lock(&lock);
    void *found = pop_lock_held(class);
    pthread_mutex_unlock(&lock);
    if (found != NULL) {
        *ptr = found;
        return 0;
    }
    if (pinned_grow(class, ptr, err) < 0) {
        return wm_error_context(err,
                                "allocating %zu bytes of pinned host "
                                "memory",
                                size);
    }
    return 0;
}

// Returns true if more memory is kept than should be.
static bool
pinned_put(void *ptr)
{
    if (ptr == NULL || wm_driver_forked())
        return false;
    wm_lock(&lock);
    size_t at = extent_above((uintptr_t)ptr);
    if (at == 0
        || (uintptr_t)ptr - extents[at - 1].base >= extents[at - 1].size) {
        pthread_mutex_unlock(&lock);
        return false; // not ours
    }
    int class = extents[at - 1].class;
    used_bytes -= (size_t)1 << class;
    used_blocks--;
    push_lock_held(ptr, class);
    if (class > CLASS_CHUNKED_MAX)
        kept_bytes += (size_t)1 << class;
    bool over = kept_bytes > KEEP_BYTES;
    pthread_mutex_unlock(&lock);
    return over;
}

void
wm_pinned_free(void *ptr)
{
    if (pinned_put(ptr))
        wm_pinned_trim();
}

void
wm_pinned_put(void *ptr)
{
    if (pinned_put(ptr))
        wm_memory_keep(); // it is given back later
}

void
wm_pinned_trim(void)
{
    void *held = wm_gil_release();
    (void)return_kept(KEEP_BYTES, false);
    wm_gil_retake(held);
}

void
wm_pinned_stats(wm_memory_stats_t *stats)
{
    if (wm_driver_forked())
        return;
    wm_lock(&lock);
    stats->pinned_bytes += total_bytes;
    stats->pinned_bytes_used += used_bytes;
    stats->pinned_blocks += used_blocks;
    stats->pinned_allocations += driver_calls;
    pthread_mutex_unlock(&lock);
}
