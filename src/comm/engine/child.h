// SPDX-License-Identifier: BSD-3-Clause
// Children of fork(). A child has the memory of an MPI process, but is none,
// and lacks its threads, which may have held locks. In a child, functions that
// would call MPI or wait for a lock of the engine are refused; functions that
// release something do nothing. Any thread.
#ifndef WM_COMM_ENGINE_CHILD_H
#define WM_COMM_ENGINE_CHILD_H

#include <stdbool.h>

#include "cuda/error.h"

// Registers the fork handlers. Called once, before any communicator is made.
WM_MUST_CHECK int
wm_child_watch(wm_error_t *err);

// Returns true if MPI was running in the process that forked this one.
bool
wm_is_child(void);

// Returns WM_ERR_STATE in such a child, else 0.
WM_MUST_CHECK int
wm_child_refuse(wm_error_t *err);

// Ends a child with status 1, and says why. Called in MPI_Finalize, which
// mpi4py calls at the end of Python: it would wait for processes that wait for
// the parent.
_Noreturn void
wm_child_end(void);

#endif
