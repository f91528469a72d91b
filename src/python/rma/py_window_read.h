// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a call of wm.Win: arrays and target, read as memory, and
// the operation of an update. GIL held. Functions return 0, or -1 with an
// exception, except where noted.
#ifndef WM_PYTHON_RMA_PY_WINDOW_READ_H
#define WM_PYTHON_RMA_PY_WINDOW_READ_H

#include "comm/rma/window_run.h"
#include "python/message/datatype.h"
#include "python/message/specification.h"
#include "python/rma/py_window.h"

// Displacement, count and datatype.
typedef struct {
    long long displacement;
    MPI_Count count;
    MPI_Datatype type;
    wm_extent_t of; // the type's
    bool named;     // the type was given
    bool gaps;
} wm_py_window_target_t;

enum { WM_PY_ORIGIN, WM_PY_COMPARE, WM_PY_RESULT, WM_PY_SIDES };

// A call that is being read.
typedef struct {
    const char *name;
    wm_window_t *window;
    bool remote; // the engine of the target serves
    wm_py_window_target_t target;
    wm_window_call_t call;
    wm_message_t messages[WM_PY_SIDES];
    bool given[WM_PY_SIDES]; // these were read
    wm_window_side_t sides[WM_PY_SIDES];
} wm_py_reading_t;

// Reads an array.
int
wm_py_reading_side(wm_py_reading_t *reading, int at, PyObject *value,
                   bool writable, const char *argument);

// Reads the target of a call whose origin, or result, was read. What is not
// given is that array's.
int
wm_py_reading_target(wm_py_reading_t *reading, PyObject *value,
                     const wm_message_t *origin,
                     wm_py_window_target_t *target);

// Finds the target's memory in this process, and checks that it is within the
// window. Returns 1 if this process does not reach it.
int
wm_py_reading_place(wm_py_reading_t *reading,
                    const wm_py_window_target_t *target);

// Finds the parts of a target with gaps, counted from `data`.
int
wm_py_reading_gaps(wm_py_reading_t *reading, char *data);

// Raises MPI_ERR_RMA_RANGE. Returns -1.
int
wm_py_reading_refuse_range(const wm_py_reading_t *reading,
                           const wm_py_window_target_t *target);

// Finds the element type and the operation of an update. `elements`: the array
// that has them.
int
wm_py_reading_update(wm_py_reading_t *reading, PyObject *op,
                     const wm_message_t *elements);

// Names elements of which only the size counts.
wm_reduce_type_t
wm_py_reading_type_of_size(size_t nbytes, size_t size);

// Releases what was read and not taken over.
void
wm_py_reading_release(wm_py_reading_t *reading);

#endif
