// SPDX-License-Identifier: BSD-3-Clause
// What a collective was given to send, or to receive into: a buffer, and the
// blocks in it. GIL held.
#ifndef WM_PYTHON_COMM_SIDE_H
#define WM_PYTHON_COMM_SIDE_H

#include "comm/coll/call/coll_table.h"
#include "comm/coll/direct/plan.h"
#include "comm/comm/comm.h"
#include "python/message/specification.h"

// One block; one for each rank, all alike; with counts and displacements;
// each of a datatype of its own, always with a pattern.

typedef struct {
    bool contiguous; // it must be
    bool given;      // else there is no message
    wm_message_t message;
    bool varies; // where the blocks lie is told by
    wm_span_t spans[WM_BARRIER_RANKS];
} wm_side_t;

// Of `size` ranks; `reduces`: it is computed with; `neighbors`, unless NULL:
// whose the blocks are, else they are those of all ranks; where one has
// several, there is a pattern. 0, or -1, maybe with an exception, where MPI is
// to read it.
int
wm_py_side_read(PyObject *value, bool writable, bool reduces, wm_form_t form,
                int size, const wm_neighbors_t *neighbors, wm_side_t *side);

#endif
