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

#endif
