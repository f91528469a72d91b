// SPDX-License-Identifier: BSD-3-Clause
// The geometry of a halo: which rank is the neighbour in which direction, and
// which cells of a field are its edges and its ghosts there. The first
// dimensions of a field are those of the cartesian communicator; the others
// are parts of an element. Pure functions.
//
// A direction is a step of -1, 0 or 1 in each dimension, so that the low and
// the high neighbour are told apart though one rank may be both.
#ifndef WM_COMM_RMA_HALO_SHAPE_H
#define WM_COMM_RMA_HALO_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/error.h"

#define WM_HALO_DIMS 3
#define WM_HALO_INNER 3 // dimensions of an element
#define WM_HALO_DIRECTIONS 27

typedef struct {
    int ndim;
    int dims[WM_HALO_DIMS]; // ranks
    bool periodic[WM_HALO_DIMS];
    int64_t low[WM_HALO_DIMS], high[WM_HALO_DIMS]; // widths
    bool corners;
} wm_halo_shape_t;

// The extents of a field. `stagger` is how many cells it has more than the
// block that the halo was told (0: none was told).
typedef struct {
    int64_t cells[WM_HALO_DIMS], stagger[WM_HALO_DIMS];
} wm_halo_extents_t;

// Points of a field, from `from` on.
typedef struct {
    int64_t from[WM_HALO_DIMS], extent[WM_HALO_DIMS];
} wm_halo_box_t;

// Returns the opposite direction.
static inline int
wm_halo_back(int direction)
{
    return WM_HALO_DIRECTIONS - 1 - direction;
}

// Returns the neighbour of a rank; -1: none, or a corner that is not wanted.
int
wm_halo_neighbor(const wm_halo_shape_t *shape, int rank, int direction);

// Finds the ghosts of a rank's field in a direction, or the edge that the
// neighbour there gets as its ghosts. Returns false if there are none. Each
// dimension that the direction does not move in spans the cells that the rank
// owns, and those beyond them where the grid ends.
bool
wm_halo_ghosts(const wm_halo_shape_t *shape, int rank,
               const wm_halo_extents_t *extents, int direction,
               wm_halo_box_t *box);
bool
wm_halo_edge(const wm_halo_shape_t *shape, int rank,
             const wm_halo_extents_t *extents, int direction,
             wm_halo_box_t *box);

// Fails with WM_ERR_VALUE, naming the field, if the ghosts or the neighbours'
// ghosts are more cells than the rank's own block has.
WM_MUST_CHECK int
wm_halo_check_width(const wm_halo_shape_t *shape, int rank, int field,
                    const wm_halo_extents_t *extents, wm_error_t *err);

#endif
