// SPDX-License-Identifier: BSD-3-Clause
// Children of fork(): one has the memory of a process of MPI's and is none,
// nor has it its threads, who may have held locks. What would call MPI or wait
// for a lock of the engine's is refused there, and what lets go of something
// does nothing. Any thread.
#ifndef WM_COMM_ENGINE_CHILD_H
#define WM_COMM_ENGINE_CHILD_H

#include <stdbool.h>

#include "cuda/error.h"

// From now on children are known. Once, before any communicator is made.
WM_MUST_CHECK int
wm_child_watch(wm_error_t *err);

// Whether MPI was running in the process that this one was forked from.
bool
wm_is_child(void);

// WM_ERR_STATE in such a child.
WM_MUST_CHECK int
wm_child_refuse(wm_error_t *err);

// In MPI_Finalize, which mpi4py calls at the end of Python: it would wait for
// processes that wait for the parent. Says so and ends the child with 1.
_Noreturn void
wm_child_end(void);

#endif
