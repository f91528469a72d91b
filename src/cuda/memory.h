// SPDX-License-Identifier: BSD-3-Clause
// Device memory that CUDA IPC can export, pinned host memory, and facts about
// pointers. Small device blocks are cut from 16 MiB slabs (one export for each
// slab), larger ones are their own allocation. Freed memory is kept for reuse,
// up to a fraction of the device. Freeing is stream-ordered: a block is handed
// out again only after the events it was freed with. Any thread. The GIL is
// not needed, and the caller releases it around alloc, which may wait when
// memory is short.
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

// Facts about memory, read from a pointer.
typedef struct {
    wm_memory_kind_t kind;
    int device;         // ordinal; -1 for host memory
    uintptr_t base;     // start of the allocation (0 if unknown)
    size_t size;        // bytes of the whole allocation (0 if unknown)
    uint64_t buffer_id; // unique in the process for ever (0 for host memory)
    bool exportable;    // legacy CUDA IPC can export it
} wm_pointer_t;

// Returns true if the memory is a GPU's, not the host's.
static inline bool
wm_memory_on_device(const wm_pointer_t *memory)
{
    return memory->kind == WM_MEMORY_DEVICE
           || memory->kind == WM_MEMORY_MANAGED;
}

// Returns true if copies on streams of `device` reach the memory. Memory of a
// pool, or of VMM, is reached by its own device only, unless its owner has
// opened it to others.
static inline bool
wm_memory_is_reached(const wm_pointer_t *memory, int device)
{
    return memory->kind != WM_MEMORY_DEVICE || memory->device == device
           || memory->exportable;
}

typedef struct wm_block wm_block_t; // device memory, opaque
typedef struct {
    size_t device_bytes;      // taken from the driver, all devices
    size_t device_bytes_used; // bytes of them in blocks handed out
    size_t pinned_bytes;      // taken from the driver, page-locked
    size_t pinned_bytes_used;
    size_t blocks; // device blocks handed out
    size_t pinned_blocks;
    size_t device_allocations; // driver calls that allocated, so far
    size_t pinned_allocations;
} wm_memory_stats_t;

// Allocates at least `size` bytes (0 counts as 1) of device memory, aligned to
// WM_MEMORY_ALIGN. Waits for pending frees, and at most five seconds for
// streams that wait for other processes. Gives idle memory back and tries the
// reclaim hook before it fails with WM_ERR_MEMORY, whose text tells the bytes
// asked for and the bytes free.
WM_MUST_CHECK int
wm_block_alloc(int device, size_t size, wm_block_t **block, wm_error_t *err);

// Frees a block, and takes over the `count` events (from wm_event_acquire, of
// the devices given) that must happen before its reuse. Does not wait, with
// one exception: if more than an eighth of the device is idle, the excess goes
// back to the driver, which waits for the device. No lock of ours is held
// then, and while a stream may be waiting for another process this is done
// later.
void
wm_block_free(wm_block_t *block, int count, const CUevent *events,
              const int *devices);

void *
wm_block_pointer(const wm_block_t *block);

size_t
wm_block_size(const wm_block_t *block);

// Writes the allocation a block lies in, without a driver call.
void
wm_block_describe(const wm_block_t *block, wm_pointer_t *pointer);

// Gives idle memory of the device (-1: of all devices) back to the driver,
// unless a stream may be waiting for another process.
void
wm_memory_trim(int device);

// Gives back the memory beyond an eighth of a device that was kept because a
// stream was waiting for another process. Costs one atomic load if there is
// none.
void
wm_memory_return_kept(void);

// Sets the hook that is called when memory is short, before WM_ERR_MEMORY,
// without locks of this layer held. The hook returns true if it may have freed
// memory. The messages layer closes its mappings of peers' memory there.
void
wm_memory_set_reclaim(bool (*reclaim)(int device));

// Sets the hook that is called before device memory of ours goes back to the
// driver, with its buffer id, by any thread and without locks of this layer.
void
wm_memory_set_freeing(void (*freeing)(uint64_t buffer_id));

// Sets the hooks for streams that wait for other processes; the messages layer
// does. The driver frees memory only when the device is idle. `waits` returns
// true if this may never be: a stream may be waiting for another process,
// which may wait for the next call of this one. Memory is kept then. `urgent`
// means that an allocation has no room; otherwise `waits` returns true in
// doubt. `turn` lets operations progress while an allocation waits for room,
// and gets the number of the turn; it returns false if this thread must not
// wait.
void
wm_memory_set_waits(bool (*waits)(bool urgent), bool (*turn)(unsigned turn));

// Calls the hook `waits`, which takes no lock. Returns false if there is no
// hook.
bool
wm_memory_would_wait(bool urgent);

// Private to this layer. The first waits for one turn, and returns false if
// the wait is over. The second notes that more memory is kept than should be.
bool
wm_memory_wait_a_turn(unsigned *naps);
void
wm_memory_keep(void);

// Allocates pinned, portable, mapped host memory, pooled by power-of-two size
// and aligned to its own size up to a page. Freed blocks are reused at once:
// the caller has waited for the work on them. The driver is called in the
// current context, or a context we have, or else that of wm_device_default().
WM_MUST_CHECK int
wm_pinned_alloc(size_t size, void **ptr, wm_error_t *err);

void
wm_pinned_free(void *ptr);

// Describes the memory at `ptr`, by one driver call. Without a driver or a
// context it is host memory. Makes no context.
WM_MUST_CHECK int
wm_pointer_describe(const void *ptr, wm_pointer_t *pointer, wm_error_t *err);

// Returns the device in whose context the memory was allocated or page-locked,
// by one driver call; -1 if CUDA does not know the memory.
int
wm_pointer_home(const void *ptr);

// Returns the id of the allocation at `base`, 0 if there is none.
uint64_t
wm_pointer_buffer_id(uintptr_t base);

// Export the allocation at `base` by CUDA IPC, and map a peer's allocation for
// `device`. wm_memory_unmap closes a mapping.
WM_MUST_CHECK int
wm_memory_export(int device, uintptr_t base, CUipcMemHandle *handle,
                 wm_error_t *err);

WM_MUST_CHECK int
wm_memory_map(int device, const CUipcMemHandle *handle, void **ptr,
              wm_error_t *err);

void
wm_memory_unmap(int device, void *ptr);

// Page-lock foreign host memory (a shared segment) for all devices, and end
// that, when no work on the memory is left.
WM_MUST_CHECK int
wm_host_register(int device, void *ptr, size_t size, wm_error_t *err);
void
wm_host_unregister(int device, void *ptr);

// Enqueue a contiguous copy between any two addresses that the device can
// reach, or make one on a stream of ours and wait; there `src` NULL clears.
WM_MUST_CHECK int
wm_memory_copy(int device, void *dst, const void *src, size_t size,
               CUstream stream, wm_error_t *err);
WM_MUST_CHECK int
wm_memory_copy_now(int device, void *dst, const void *src, size_t size,
                   wm_error_t *err);

void
wm_memory_stats(wm_memory_stats_t *stats);

// Private to this layer. The first adds the pinned part to the statistics. The
// second gives pinned memory beyond the bound back.
void
wm_pinned_stats(wm_memory_stats_t *stats);
void
wm_pinned_trim(void);

#endif
