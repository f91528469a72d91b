// SPDX-License-Identifier: BSD-3-Clause
// The making of a set of fields, for its two files: halo_register.c, where the
// ranks tell each other their fields, and halo_tasks.c, which cuts the copies
// into tasks.
#ifndef WM_COMM_RMA_HALO_MAKING_H
#define WM_COMM_RMA_HALO_MAKING_H

#include "comm/rma/halo_state.h"

#define WM_HALO_PLAN (-2) // in place of an operation

enum {
    WM_HALO_ON_GPU = 1, // all fields are on this rank's device
    WM_HALO_REACHED =
        2, // they can be exported, and the neighbours' are mapped
};

// The state of a rank in the making of a set.
typedef struct {
    int count, device;
    int op;            // of the set, or WM_HALO_PLAN
    uint32_t number;   // of the halo
    uint32_t replaces; // id of the set that the rank has found; 0: none
    unsigned flags;
    wm_halo_shape_t shape;
    uint32_t tasks[WM_HALO_DIRECTIONS]; // toward the neighbour there
} wm_halo_head_t;

// A field, as its rank tells it.
typedef struct {
    wm_rkey_t place;
    int32_t dtype, inner_ndim;
    wm_halo_extents_t extents;
    int64_t strides[WM_HALO_DIMS];
    int64_t inner[WM_HALO_INNER], inner_strides[WM_HALO_INNER];
} wm_halo_record_t;

typedef struct {
    wm_halo_t *halo;
    const wm_halo_field_t *fields;
    int count;
    int op; // of a reduction (wm_reduce_op_t); WM_HALO_EXCHANGE
    wm_halo_head_t own, *heads; // heads: by rank
    wm_halo_record_t *records;  // by rank and field, and then this rank's own
    wm_halo_record_t *gathered; // one of each rank
    wm_halo_set_t *set;
    char *bases[WM_HALO_DIRECTIONS][WM_HALO_FIELDS]; // the neighbour's fields
} wm_halo_making_t;

static inline const wm_halo_record_t *
wm_halo_record(const wm_halo_making_t *making, int rank, int field)
{
    return &making->records[(ptrdiff_t)rank * WM_HALO_FIELDS + field];
}

// Cuts the copies of the set into tasks, once all fields are mapped, and fills
// `own.tasks`.
WM_MUST_CHECK int
wm_halo_make_tasks(wm_halo_making_t *making, wm_error_t *err);

// Returns true if lines serve the set (kernels/halo.h). All ranks have the
// records of all, and find the same.
bool
wm_halo_wants_lines(const wm_halo_making_t *making);

// Makes the memory for lines, unless that of other sets serves, and the tasks.
// Collective. *made becomes false on all ranks if a rank has no such memory
// left, or does not reach another's.
WM_MUST_CHECK int
wm_halo_make_lines(wm_halo_making_t *making, bool *made, wm_error_t *err);

// Describes a box of a field as an array; `base` is the address of the field.
void
wm_halo_box_array(const wm_halo_record_t *record, const wm_halo_shape_t *shape,
                  char *base, const wm_halo_box_t *box, wm_array_t *array);

size_t
wm_halo_box_bytes(const wm_halo_record_t *record, const wm_halo_box_t *box);

// Gives the GPU the tasks of a set.
WM_MUST_CHECK int
wm_halo_upload(wm_halo_set_t *set, int device, const wm_halo_task_t *tasks,
               size_t count, wm_error_t *err);

// Fills what the kernel knows of this rank.
void
wm_halo_fill_own(wm_halo_making_t *making);

// Counts the bytes that each exchange of the set moves to the neighbours, of
// whom this rank may be one; in a reduction from them.
void
wm_halo_count_bytes(wm_halo_making_t *making);

// Fills the rows of the neighbours, once all ranks have told their tasks.
void
wm_halo_fill_peers(wm_halo_making_t *making);

#endif
