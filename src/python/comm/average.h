// SPDX-License-Identifier: BSD-3-Clause
// wm.AVG, an operation beside MPI's: the sum, divided by the number of ranks.
// GPUs compute it; MPI is given MPI_SUM, and the result is divided. GIL held.
#ifndef WM_PYTHON_COMM_AVERAGE_H
#define WM_PYTHON_COMM_AVERAGE_H

#include "comm/coll/call/call.h"
#include "python/core/mpi4py.h"

bool
wm_py_average_is(PyObject *object);

// Returns 0 if a call can average elements of a type; else -1 with a TypeError
// naming `op`.
int
wm_py_average_check(const wm_coll_t *call);

#endif
