// SPDX-License-Identifier: BSD-3-Clause
// The bookkeeping of one device's memory, without a driver call: regions
// (memory from the driver: slabs, which are cut up, and single allocations,
// which are not), the blocks they are cut into, and which blocks are free. The
// caller holds the heap's lock around each call. Private to block.c.
#ifndef WM_CUDA_HEAP_H
#define WM_CUDA_HEAP_H

#include "cuda/memory.h"

#define WM_HEAP_BINS 16

typedef struct wm_region wm_region_t;

typedef struct {
    CUevent event;
    int device;
} wm_pending_t;

struct wm_block {
    wm_region_t *region;
    size_t offset; // in the region
    size_t size;
    bool free;
    wm_block_t *below, *above; // neighbours by address
    wm_block_t *prev, *next;   // in a bin, or in the list of pending frees
    int pending_count;         // events that must happen before reuse
    wm_pending_t *pending;
};

struct wm_region {
    wm_pointer_t facts;
    bool slab;
    bool on_host; // page-locked memory, of no heap (spill.h)
    bool idle;    // no block is handed out or pending
    wm_block_t *first;
    wm_region_t *prev, *next; // in the list of idle regions, oldest first
};

typedef struct {
    wm_block_t *bins[WM_HEAP_BINS]; // free blocks of slabs by size
    wm_region_t *idle_first, *idle_last;
    size_t idle_bytes;
    size_t bytes;      // of all regions
    size_t used_bytes; // of blocks handed out
    size_t used_blocks;
} wm_heap_t;

// Makes a region with one block over the memory that `facts` describe. Returns
// NULL if host memory is exhausted. The region belongs to no heap.
wm_region_t *
wm_region_new(const wm_pointer_t *facts, bool slab);

// Frees the bookkeeping of an idle region that wm_heap_spare took out.
void
wm_region_free(wm_region_t *region);

// Adds a region; all of its memory is free.
void
wm_heap_add(wm_heap_t *heap, wm_region_t *region);

// Allocates a block of at least `size` bytes (a multiple of WM_MEMORY_ALIGN):
// cut from a slab, or an idle single allocation of which at most a quarter is
// wasted. Returns NULL if there is none.
wm_block_t *
wm_heap_alloc(wm_heap_t *heap, size_t size, bool slab);

// Counts a block as not handed out; it stays unusable until wm_heap_free.
void
wm_heap_retire(wm_heap_t *heap, wm_block_t *block);

// Makes a retired block free, joined with its free neighbours.
void
wm_heap_free(wm_heap_t *heap, wm_block_t *block);

// Takes the oldest idle region out; if `keep_slab`, the last idle slab stays.
// Returns NULL if there is none to take.
wm_region_t *
wm_heap_spare(wm_heap_t *heap, bool keep_slab);

#endif
