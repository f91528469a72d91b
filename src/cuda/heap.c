// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/heap.h"

#include <stdlib.h>

#include "cuda/list.h"

// The number of blocks of one bin that are searched for the best fit.
#define BIN_TRIES 64

static int
bin_of(size_t size)
{
    size_t units = size / WM_MEMORY_ALIGN;
    int bin = 63 - __builtin_clzll(units);
    return bin < WM_HEAP_BINS ? bin : WM_HEAP_BINS - 1;
}

static void
bin_add(wm_heap_t *heap, wm_block_t *block)
{
    wm_block_t **head = &heap->bins[bin_of(block->size)];
    block->free = true;
    block->prev = NULL;
    block->next = *head;
    if (*head != NULL)
        (*head)->prev = block;
    *head = block;
}

static void
bin_remove(wm_heap_t *heap, wm_block_t *block)
{
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        heap->bins[bin_of(block->size)] = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
    block->free = false;
    block->prev = block->next = NULL;
}

static void
idle_add(wm_heap_t *heap, wm_region_t *region)
{
    region->idle = true;
    WM_LIST_APPEND(heap->idle_first, heap->idle_last, region);
    heap->idle_bytes += region->facts.size;
}

static void
idle_remove(wm_heap_t *heap, wm_region_t *region)
{
    WM_LIST_REMOVE(heap->idle_first, heap->idle_last, region);
    region->idle = false;
    heap->idle_bytes -= region->facts.size;
}

wm_region_t *
wm_region_new(const wm_pointer_t *facts, bool slab)
{
    wm_region_t *region = calloc(1, sizeof(*region));
    wm_block_t *block = calloc(1, sizeof(*block));
    if (region == NULL || block == NULL) {
        free(region);
        free(block);
        return NULL;
    }
    region->facts = *facts;
    region->slab = slab;
    region->first = block;
    block->region = region;
    block->size = facts->size;
    return region;
}

void
wm_region_free(wm_region_t *region)
{
    free(region->first);
    free(region);
}

void
wm_heap_add(wm_heap_t *heap, wm_region_t *region)
{
    heap->bytes += region->facts.size;
    idle_add(heap, region);
    if (region->slab)
        bin_add(heap, region->first);
    else
        region->first->free = true;
}

// Finds the smallest fitting block among the first of its own bin. In a higher
// bin every block fits, and the lowest such bin is good enough.
static wm_block_t *
find_in_bins(wm_heap_t *heap, size_t size)
{
    wm_block_t *best = NULL;
    int bin = bin_of(size);
    int tries = BIN_TRIES;
    for (wm_block_t *block = heap->bins[bin]; block != NULL && tries > 0;
         block = block->next, tries--)
        if (block->size >= size && (best == NULL || block->size < best->size))
            best = block;
    while (best == NULL && ++bin < WM_HEAP_BINS)
        best = heap->bins[bin];
    return best;
}

// Cuts off the bytes beyond `size` and frees them. Without host memory for the
// bookkeeping, the block stays larger than needed.
static void
heap_split(wm_heap_t *heap, wm_block_t *block, size_t size)
{
    if (block->size - size < WM_MEMORY_ALIGN)
        return;
    wm_block_t *rest = calloc(1, sizeof(*rest));
    if (rest == NULL)
        return;
    rest->region = block->region;
    rest->offset = block->offset + size;
    rest->size = block->size - size;
    rest->below = block;
    rest->above = block->above;
    if (rest->above != NULL)
        rest->above->below = rest;
    block->above = rest;
    block->size = size;
    bin_add(heap, rest);
}

static wm_block_t *
find_single(wm_heap_t *heap, size_t size)
{
    wm_region_t *best = NULL;
    for (wm_region_t *region = heap->idle_first; region != NULL;
         region = region->next) {
        size_t has = region->facts.size;
        if (!region->slab && has >= size && has - size <= size / 4
            && (best == NULL || has < best->facts.size))
            best = region;
    }
    return best != NULL ? best->first : NULL;
}

wm_block_t *
wm_heap_alloc(wm_heap_t *heap, size_t size, bool slab)
{
    wm_block_t *block = slab ? find_in_bins(heap, size)
                             : find_single(heap, size);
    if (block == NULL)
        return NULL;
    if (block->region->idle)
        idle_remove(heap, block->region);
    if (slab) {
        bin_remove(heap, block);
        heap_split(heap, block, size);
    }
    block->free = false;
    heap->used_bytes += block->size;
    heap->used_blocks++;
    return block;
}

void
wm_heap_retire(wm_heap_t *heap, wm_block_t *block)
{
    heap->used_bytes -= block->size;
    heap->used_blocks--;
}

// Merges the block above into the block below.
static wm_block_t *
heap_join(wm_block_t *below, wm_block_t *above)
{
    below->size += above->size;
    below->above = above->above;
    if (below->above != NULL)
        below->above->below = below;
    free(above);
    return below;
}

void
wm_heap_free(wm_heap_t *heap, wm_block_t *block)
{
    wm_region_t *region = block->region;
    block->prev = block->next = NULL;
    if (!region->slab) {
        block->free = true;
        idle_add(heap, region);
        return;
    }
    if (block->above != NULL && block->above->free) {
        bin_remove(heap, block->above);
        block = heap_join(block, block->above);
    }
    if (block->below != NULL && block->below->free) {
        bin_remove(heap, block->below);
        block = heap_join(block->below, block);
    }
    bin_add(heap, block);
    if (block->size == region->facts.size)
        idle_add(heap, region);
}

wm_region_t *
wm_heap_spare(wm_heap_t *heap, bool keep_slab)
{
    wm_region_t *kept = keep_slab ? heap->idle_last : NULL;
    while (kept != NULL && !kept->slab)
        kept = kept->prev;
    wm_region_t *region = heap->idle_first;
    if (region != NULL && region == kept)
        region = region->next;
    if (region == NULL)
        return NULL;
    idle_remove(heap, region);
    if (region->slab)
        bin_remove(heap, region->first);
    heap->bytes -= region->facts.size;
    return region;
}
