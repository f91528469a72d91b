// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a buffer that a call of MPI's reads or writes, for the copies
// between the buffer and its staging copy. GIL held.
#ifndef WM_PYTHON_STAGING_RUNS_H
#define WM_PYTHON_STAGING_RUNS_H

#include "comm/coll/mpi/staged.h"
#include "python/core/module.h"

// Reads what _core._runs has made, or (offset, bytes), for a staging copy of
// `nbytes`. Returns a call for wm_staged_begin() or wm_staged_copy(), which
// the caller frees by free(); or NULL with an exception.
wm_staged_t *
wm_py_runs_read(PyObject *runs, char *staging, size_t nbytes);

// Returns what _core._origin does.
PyObject *
wm_py_runs_origin(PyObject *buffer, const char *form);

// Returns 1 if a buffer with an origin is GPU memory, else 0; or -1 with an
// exception naming `name`: ValueError for addresses in GPU memory and in other
// allocations.
int
wm_py_runs_on_device(PyObject *buffer, Py_ssize_t origin, const char *form,
                     const char *name);

#endif
