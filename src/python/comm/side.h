// SPDX-License-Identifier: BSD-3-Clause
// One side of a collective, sent or received: a buffer, and the blocks in it.
// GIL held.
#ifndef WM_PYTHON_COMM_SIDE_H
#define WM_PYTHON_COMM_SIDE_H

#include "comm/coll/call/coll_table.h"
#include "comm/coll/direct/plan.h"
#include "comm/comm/comm.h"
#include "python/message/specification.h"

// The blocks: one; one for each rank, all alike; with counts and
// displacements; or each with a datatype of its own, always with a pattern.

typedef struct {
    bool contiguous; // the buffer must be contiguous
    bool anywhere;   // also host memory with gaps, and any datatype
    bool given;      // there is a message
    wm_message_t message;
    bool varies; // `spans` has the places of the blocks
    wm_span_t spans[WM_BARRIER_RANKS];
} wm_side_t;

// Reads one side of `size` ranks. `reduces`: the elements are computed with.
// `neighbors`, unless NULL: the ranks that the blocks belong to, else all
// ranks; if a rank has several blocks, there is a pattern. Returns 0, or -1,
// maybe with an exception, if MPI is to read the buffer.
int
wm_py_side_read(PyObject *value, bool writable, bool reduces,
                wm_block_form_t form, int size,
                const wm_neighbors_t *neighbors, wm_side_t *side);

#endif
