// SPDX-License-Identifier: BSD-3-Clause
// The engine "mpi", which can do every call: MPI's nonblocking collectives
// (by_mpi.h). The caller makes its blocking calls (WM_COLL_BY_MPI), by
// wm_by_mpi_call() or, if only mpi4py can read the arguments, by mpi4py.
#ifndef WM_COMM_COLL_HOST_MPI_ENGINE_H
#define WM_COMM_COLL_HOST_MPI_ENGINE_H

#include "comm/coll/direct/coll_op.h"

extern const wm_coll_engine_t wm_mpi_engine;

#endif
