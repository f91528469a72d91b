// SPDX-License-Identifier: BSD-3-Clause
// Storages and arrays. A storage owns device, pinned or host memory, or holds
// a foreign owner (an opaque pointer with a release function). Storages are
// reference-counted atomically. An array is a strided view of a storage, a
// plain struct. No MPI, no Python. The GIL is not needed, except by a foreign
// owner's release function, which takes it itself.
#ifndef WM_ARRAY_ARRAY_H
#define WM_ARRAY_ARRAY_H

#include "array/dtype.h"
#include "array/order.h"
#include "cuda/memory.h"

#define WM_MAX_NDIM 32

typedef struct wm_storage {
    void *ptr;
    size_t size;         // bytes
    wm_pointer_t memory; // kind, device, allocation
    wm_order_t *order;   // NULL for pageable host memory
    // The device on which others may use the memory without our knowledge; -1:
    // none. It is set once the pointer was given away (CAI, DLPack, ptr) or
    // came from elsewhere, and stays. Page-locked memory that only NumPy knows
    // has none, as NumPy's users wait for the work that they enqueue.
    _Atomic int others;
    bool readonly;
    // The members below are private to array.c.
    _Atomic long references;
    wm_block_t *block;
    void *owner; // owner of foreign memory, else NULL
    void (*release)(void *owner);
    struct wm_storage *next; // in the list of lingering storages
} wm_storage_t;

typedef struct {
    wm_storage_t *storage; // one reference, or NULL for a bare description
    char *data;            // first element
    wm_dtype_t dtype;
    bool readonly;
    int ndim;
    int64_t shape[WM_MAX_NDIM];
    int64_t strides[WM_MAX_NDIM]; // bytes
} wm_array_t;

// Makes a storage over foreign memory of `size` bytes. `others`: the member of
// that name. On success the storage owns `owner`: when the last reference
// goes, and our own work on the memory has ended, release(owner) is called
// once. While a stream may be waiting for another process,
// wm_storage_free_kept does this later.
WM_MUST_CHECK int
wm_storage_wrap(void *ptr, size_t size, const wm_pointer_t *memory, int others,
                bool readonly, void *owner, void (*release)(void *),
                wm_storage_t **storage, wm_error_t *err);

// Notes that other code has the pointer, and may use the memory on a device.
void
wm_storage_give_away(wm_storage_t *storage);

// Adds a reference; returns `storage`.
wm_storage_t *
wm_storage_retain(wm_storage_t *storage);

// Drops a reference. The last one frees the memory: device memory in stream
// order; other memory after a wait on the host for our work on it, or, while a
// stream may be waiting for another process, by wm_storage_free_kept. Releases
// the GIL while it waits.
void
wm_storage_release(wm_storage_t *storage);

// Frees what could not be freed while a stream was waiting for another
// process: storages without references, once the work on them has ended, and
// idle device memory. Costs two atomic loads if there is nothing to free.
void
wm_storage_free_kept(void);

// Makes a new C-contiguous array. Without a GPU `pinned` is ignored: no copy
// would gain from it. Fails with WM_ERR_VALUE for a negative extent, too many
// dimensions or a size that overflows.
WM_MUST_CHECK int
wm_array_new(int device, bool pinned, wm_dtype_t dtype, int ndim,
             const int64_t *shape, wm_array_t *array, wm_error_t *err);

// Drops the reference to the storage.
void
wm_array_clear(wm_array_t *array);

// Copies an array without the unused part of shape and strides. Copies the
// storage pointer, and adds no reference.
void
wm_array_copy_header(wm_array_t *dst, const wm_array_t *src);

// Writes the producer of the array's memory: the order of its storage, and the
// whole device as well if others may use the memory there; NONE for a bare
// description, or pageable memory that nobody uses on a device.
void
wm_array_producer(const wm_array_t *array, wm_producer_t *producer);

// Writes what the array's memory is: from its storage or, for a bare
// description, from the driver.
WM_MUST_CHECK int
wm_array_memory(const wm_array_t *array, wm_pointer_t *memory,
                wm_error_t *err);

// Return the number of elements, and of bytes they hold.
int64_t
wm_array_count(const wm_array_t *array);

size_t
wm_array_nbytes(const wm_array_t *array);

bool
wm_array_is_contiguous(const wm_array_t *array); // C order

bool
wm_array_is_f_contiguous(const wm_array_t *array);

// Writes the lowest address that the view touches, and the number of bytes up
// to its end.
void
wm_array_extent(const wm_array_t *array, char **low, size_t *length);

#endif
