// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transfer/transfer_region.h"

#include "array/copy.h"

bool
wm_transfer_region_holds(const wm_transfer_region_t *region, size_t at,
                         size_t nbytes)
{
    const wm_rkey_t *place = region->place;
    const wm_strided_desc_t *gaps = region->gaps;
    size_t end;
    if (region->peer == NULL && gaps == NULL)
        return true;
    if (place == NULL || __builtin_add_overflow(at, nbytes, &end)
        || !wm_rkey_holds(place, gaps != NULL ? 0 : end))
        return false;
    size_t before = place->address - place->base;
    return gaps == NULL
           || (wm_strided_desc_is_within(gaps, before, place->size - before)
               && end <= wm_strided_desc_nbytes(gaps));
}

int
wm_transfer_region_map(wm_transfer_region_t *region, int device,
                       wm_error_t *err)
{
    if (region->memory != NULL)
        return 0;
    if (region->peer == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0, "a region has no memory");
    return wm_mapping_reach(region->peer, region->place, device,
                            &region->mapping, &region->memory, err);
}

static bool
is_dense(const wm_transfer_region_t *region)
{
    return region->gaps == NULL && region->pattern == NULL;
}

bool
wm_transfer_region_are_dense(const wm_transfer_region_t *into,
                             const wm_transfer_region_t *from)
{
    return is_dense(into) && is_dense(from);
}

// Finds the strides of a part of a region with gaps. Returns false if there
// are none.
static bool
transfer_region_cut(const wm_transfer_region_t *region, size_t at,
                    size_t nbytes, wm_strided_t *part)
{
    wm_strided_t all;
    if (region->pattern != NULL)
        return wm_pattern_cut(region->pattern, at, nbytes, part);
    wm_strided_desc_open(region->gaps, region->memory, &all);
    return wm_strided_cut(&all, at, nbytes, part);
}

// Finds the layout of one copy if both regions have gaps. Returns false if
// there is none.
static bool
pair(const wm_transfer_region_t *into, size_t at,
     const wm_transfer_region_t *from, size_t begin, size_t nbytes,
     wm_layout_t *layout)
{
    wm_strided_t target, source;
    return transfer_region_cut(from, begin, nbytes, &source)
           && transfer_region_cut(into, at, nbytes, &target)
           && wm_strided_pair(&target, &source, layout);
}

bool
wm_transfer_region_can_copy(const wm_transfer_region_t *into, size_t at,
                            const wm_transfer_region_t *from, size_t begin,
                            size_t nbytes)
{
    wm_layout_t layout;
    return is_dense(into) || is_dense(from)
           || pair(into, at, from, begin, nbytes, &layout);
}

// Enqueues a copy between a region with gaps and contiguous memory.
static int
copy_packed(const wm_transfer_region_t *region, size_t at, char *packed,
            size_t nbytes, bool packs, int device, CUstream stream,
            wm_error_t *err)
{
    wm_strided_t all;
    if (region->pattern != NULL)
        return wm_pattern_copy_part(region->pattern, at, packed, nbytes, packs,
                                    device, stream, err);
    wm_strided_desc_open(region->gaps, region->memory, &all);
    return wm_strided_copy_part(&all, at, packed, nbytes, packs, device,
                                stream, err);
}

int
wm_transfer_region_copy(const wm_transfer_region_t *into, size_t at,
                        const wm_transfer_region_t *from, size_t begin,
                        size_t nbytes, int device, CUstream stream,
                        wm_error_t *err)
{
    wm_layout_t layout;
    char *target = into->memory + at, *source = from->memory + begin;
    if (wm_transfer_region_are_dense(into, from))
        return source == target ? 0
                                : wm_memory_copy(device, target, source,
                                                 nbytes, stream, err);
    if (is_dense(into))
        return copy_packed(from, begin, target, nbytes, true, device, stream,
                           err);
    if (is_dense(from))
        return copy_packed(into, at, source, nbytes, false, device, stream,
                           err);
    return pair(into, at, from, begin, nbytes, &layout)
               ? wm_copy_layout(&layout, device, stream, err)
               : wm_error_set(err, WM_ERR_STATE, 0, "no dimensions walk both");
}
