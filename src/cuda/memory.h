// SPDX-License-Identifier: BSD-3-Clause
// Device memory that CUDA IPC can export, pinned host memory, and what a
// pointer is. Small device blocks are cut from 16 MiB slabs (one export a
// slab), larger ones are their own allocation, and a freed one is kept for
// reuse while what is kept stays below a fraction of the device; freeing is
// stream-ordered: a block is handed out again only when the events it was
// freed with have happened. Any thread; GIL not needed, and released by the
// caller around alloc, which may wait when memory is short.
#ifndef WM_CUDA_MEMORY_H
#define WM_CUDA_MEMORY_H

#include "cuda/event.h"
#include "cuda/stream.h"

#define WM_MEMORY_ALIGN 512

typedef enum {
    WM_MEMORY_HOST = 0,    // pageable, or unknown to CUDA
    WM_MEMORY_PINNED = 1,  // page-locked host memory, device-accessible
    WM_MEMORY_DEVICE = 2,  // device memory of any allocator
    WM_MEMORY_MANAGED = 3, // migrates; reachable from everywhere
} wm_memory_kind_t;

// What memory is, read from the pointer.
typedef struct {
    wm_memory_kind_t kind;
    int device;         // ordinal; -1 for host memory
    uintptr_t base;     // start of the allocation (0 where unknown)
    size_t size;        // of the whole allocation (0 where unknown)
    uint64_t buffer_id; // unique in the process for ever (0 for host memory)
    bool exportable;    // legacy CUDA IPC can export it
} wm_pointer_t;

// Whether it is a GPU's, rather than the host's.
static inline bool
wm_memory_on_device(const wm_pointer_t *memory)
{
    return memory->kind == WM_MEMORY_DEVICE
           || memory->kind == WM_MEMORY_MANAGED;
}

typedef struct wm_block wm_block_t; // device memory, opaque
typedef struct {
    size_t device_bytes;      // taken from the driver, all devices
    size_t device_bytes_used; // of them in blocks handed out
    size_t pinned_bytes;      // likewise for pinned host memory
    size_t pinned_bytes_used;
    size_t blocks; // device blocks handed out
    size_t pinned_blocks;
    size_t device_allocations; // calls of the driver's allocator so far
    size_t pinned_allocations;
} wm_memory_stats_t;

// At least `size` bytes (0 is served as 1) of device memory, aligned to
// WM_MEMORY_ALIGN. WM_ERR_MEMORY tells what was asked for and what was free,
// after what is idle was given back and the reclaim hook was tried. Waits for
// frees that are pending; for streams that wait for other processes, five
// seconds at most.
WM_MUST_CHECK int
wm_block_alloc(int device, size_t size, wm_block_t **block, wm_error_t *err);

// Ends the caller's ownership. Never waits, except that where more than an
// eighth of the device lies idle the excess goes back to the driver, which
// waits for the device (not with a lock of ours held; later where a stream may
// be waiting for another process). Takes over the `count` events (from
// wm_event_acquire, of the devices given) that must happen before reuse.
void
wm_block_free(wm_block_t *block, int count, const CUevent *events,
              const int *devices);

void *
wm_block_pointer(const wm_block_t *block);

size_t
wm_block_size(const wm_block_t *block);

// The allocation a block lies in, without asking the driver.
void
wm_block_describe(const wm_block_t *block, wm_pointer_t *pointer);

// Gives idle memory of the device back to the driver (-1: all devices), unless
// a stream may be waiting for another process.
void
wm_memory_trim(int device);

// Gives back what was kept beyond an eighth of a device, as a stream was
// waiting for another process. One atomic load where nothing was.
void
wm_memory_return_kept(void);

// Called (without locks of this layer held) when memory is short and before
// WM_ERR_MEMORY; returns whether it may have freed some. The messages layer
// sets it to close its mappings of peers' memory.
void
wm_memory_set_reclaim(bool (*reclaim)(int device));

// The driver frees memory once the device is idle. `waits` says whether that
// may be never: a stream may be waiting for another process, which may wait
// for what this one does next. Then memory is kept. `urgent`: an allocation
// has no room; else memory is kept in doubt. `turn` lets what is under way go
// on while an allocation waits for room, for the number of turns told; false:
// this thread must not wait. The messages layer sets both.
void
wm_memory_set_waits(bool (*waits)(bool urgent), bool (*turn)(unsigned turn));

// Asks `waits`, which takes no lock. False where it was not set.
bool
wm_memory_would_wait(bool urgent);

// Private to this layer: waits for one turn, false where no more is to be
// waited; and tells that more is kept than should be.
bool
wm_memory_wait_a_turn(unsigned *naps);
void
wm_memory_keep(void);

// Pinned, portable, mapped host memory, pooled by power-of-two size, aligned
// to its own size up to a page. Freed blocks are reused at once: the caller
// has waited for the work on them. Made under the context that is current, or
// a context we have, or, where there is none, that of wm_device_default().
WM_MUST_CHECK int
wm_pinned_alloc(size_t size, void **ptr, wm_error_t *err);

void
wm_pinned_free(void *ptr);

// What `ptr` is. One driver call; host memory without a driver or a context.
// Never makes a context.
WM_MUST_CHECK int
wm_pointer_describe(const void *ptr, wm_pointer_t *pointer, wm_error_t *err);

// The id of the allocation that now lies at `base`, 0 when there is none.
uint64_t
wm_pointer_buffer_id(uintptr_t base);

// CUDA IPC: the handle of the allocation at `base`; a peer's allocation mapped
// for `device` (closed with wm_memory_unmap).
WM_MUST_CHECK int
wm_memory_export(int device, uintptr_t base, CUipcMemHandle *handle,
                 wm_error_t *err);

WM_MUST_CHECK int
wm_memory_map(int device, const CUipcMemHandle *handle, void **ptr,
              wm_error_t *err);

void
wm_memory_unmap(int device, void *ptr);

// Page-locks foreign host memory (a shared segment) for all devices.
WM_MUST_CHECK int
wm_host_register(int device, void *ptr, size_t size, wm_error_t *err);

// Enqueues a contiguous copy between any two addresses the device can reach.
WM_MUST_CHECK int
wm_memory_copy(int device, void *dst, const void *src, size_t size,
               CUstream stream, wm_error_t *err);

void
wm_memory_stats(wm_memory_stats_t *stats);

// Add their part to the statistics; private to this layer.
void
wm_block_stats(wm_memory_stats_t *stats);
void
wm_pinned_stats(wm_memory_stats_t *stats);

// Gives back what is kept beyond the bound; private as well.
void
wm_pinned_trim(void);

#endif
