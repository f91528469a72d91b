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

// Sets the exit status of a child, 0 at first. GIL held.
void
wm_child_set_status(int status);

// Ends a child with this status, at the end of Python, before mpi4py calls
// MPI_Finalize: it would wait for processes that wait for the parent.
_Noreturn void
wm_child_end(void);

// Ends a child that calls MPI_Finalize itself, with status 1, and says why.
_Noreturn void
wm_child_refuse_end(void);

#endif
