// SPDX-License-Identifier: BSD-3-Clause
// Staggered fields follow the rule of ImplicitGlobalGrid.jl (Omlin, Räss and
// Utkin, "Distributed Parallelization of xPU Stencil Computations in Julia",
// 2022): a field with n cells more than the block overlaps the neighbour's by
// n cells more, which both ranks compute, and one with fewer cells has no
// ghosts in that dimension.
#include "comm/rma/halo_shape.h"

#include <inttypes.h>

static int
step_of(int direction, int d)
{
    static const int weights[WM_HALO_DIMS] = {9, 3, 1};
    return direction / weights[d] % 3 - 1;
}

// MPI numbers the ranks of a cartesian communicator in row-major order.
static void
coords_of(const wm_halo_shape_t *shape, int rank, int *coords)
{
    for (int d = shape->ndim - 1; d >= 0; --d) {
        coords[d] = rank % shape->dims[d];
        rank /= shape->dims[d];
    }
}

// Returns true if there is a rank at the coordinate, and wraps it.
static bool
is_inside(const wm_halo_shape_t *shape, int d, int *at)
{
    int ranks = shape->dims[d];
    if (shape->periodic[d])
        *at = (*at + ranks) % ranks;
    return *at >= 0 && *at < ranks;
}

int
wm_halo_neighbor(const wm_halo_shape_t *shape, int rank, int direction)
{
    int coords[WM_HALO_DIMS], neighbor = 0, moved = 0;
    coords_of(shape, rank, coords);
    for (int d = 0; d < WM_HALO_DIMS; ++d) {
        int step = step_of(direction, d);
        moved += step != 0;
        if (d >= shape->ndim) {
            if (step != 0)
                return -1;
            continue;
        }
        coords[d] += step;
        if (!is_inside(shape, d, &coords[d]))
            return -1;
        neighbor = neighbor * shape->dims[d] + coords[d];
    }
    return moved == 0 || (moved > 1 && !shape->corners) ? -1 : neighbor;
}

// Returns true if the field has ghosts in the dimension.
static bool
is_exchanged(const wm_halo_shape_t *shape, const wm_halo_extents_t *extents,
             int d)
{
    return d < shape->ndim && shape->low[d] + shape->high[d] > 0
           && extents->stagger[d] >= 0;
}

static bool
has_neighbor(const wm_halo_shape_t *shape, int coord, int d, int step)
{
    coord += step;
    return is_inside(shape, d, &coord);
}

// Spans the dimension that a direction does not move in.
static void
span(const wm_halo_shape_t *shape, int coord, const wm_halo_extents_t *extents,
     int d, wm_halo_box_t *box)
{
    int64_t low = 0, high = 0;
    if (is_exchanged(shape, extents, d)) {
        low = has_neighbor(shape, coord, d, -1) ? shape->low[d] : 0;
        high = has_neighbor(shape, coord, d, 1) ? shape->high[d] : 0;
    }
    box->from[d] = low;
    box->extent[d] = extents->cells[d] - low - high;
}

static bool
find_box(const wm_halo_shape_t *shape, int rank,
         const wm_halo_extents_t *extents, int direction, bool ghosts,
         wm_halo_box_t *box)
{
    int coords[WM_HALO_DIMS] = {0};
    bool any = true;
    coords_of(shape, rank, coords);
    for (int d = 0; d < WM_HALO_DIMS; ++d) {
        int step = step_of(direction, d);
        int64_t cells = extents->cells[d], both;
        box->from[d] = 0;
        box->extent[d] = 1;
        if (d >= shape->ndim)
            continue;
        if (step == 0)
            span(shape, coords[d], extents, d, box);
        else if (!is_exchanged(shape, extents, d))
            return false;
        else {
            // The low neighbour's ghosts are its high ones.
            bool high = (step > 0) == ghosts;
            box->extent[d] = high ? shape->high[d] : shape->low[d];
            both = shape->low[d] + shape->high[d] + extents->stagger[d];
            box->from[d] = ghosts     ? (step < 0 ? 0 : cells - shape->high[d])
                           : step < 0 ? shape->low[d] + extents->stagger[d]
                                      : cells - both;
        }
        any = any && box->extent[d] > 0;
    }
    return any;
}

bool
wm_halo_ghosts(const wm_halo_shape_t *shape, int rank,
               const wm_halo_extents_t *extents, int direction,
               wm_halo_box_t *box)
{
    return wm_halo_neighbor(shape, rank, direction) >= 0
           && find_box(shape, rank, extents, direction, true, box);
}

bool
wm_halo_edge(const wm_halo_shape_t *shape, int rank,
             const wm_halo_extents_t *extents, int direction,
             wm_halo_box_t *box)
{
    return wm_halo_neighbor(shape, rank, direction) >= 0
           && find_box(shape, rank, extents, direction, false, box);
}

static int64_t
most_of(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

int
wm_halo_check_width(const wm_halo_shape_t *shape, int rank, int field,
                    const wm_halo_extents_t *extents, wm_error_t *err)
{
    int coords[WM_HALO_DIMS];
    coords_of(shape, rank, coords);
    for (int d = 0; d < shape->ndim; ++d) {
        int64_t low = shape->low[d], high = shape->high[d];
        int64_t own = extents->cells[d] - low - high;
        bool below = has_neighbor(shape, coords[d], d, -1);
        bool above = has_neighbor(shape, coords[d], d, 1);
        int64_t wanted = most_of(below ? high : 0, above ? low : 0);
        if (!is_exchanged(shape, extents, d))
            continue;
        if (wanted > 0 || below || above)
            wanted += extents->stagger[d];
        if (own >= wanted && own >= 0)
            continue;
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "fields[%d]: dimension %d has %" PRId64 " cells of rank %d, of "
            "which %" PRId64 " are ghosts (width %" PRId64 " and %" PRId64
            "), so that the block is narrower than its ghosts: use fewer "
            "ranks in this dimension, or a smaller width",
            field, d, extents->cells[d], rank, low + high, low, high);
    }
    return 0;
}
