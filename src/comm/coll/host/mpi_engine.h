// SPDX-License-Identifier: BSD-3-Clause
// The engine "mpi", which can do every call: MPI's nonblocking collectives
// (by_mpi.h). Its blocking calls, and those of arguments that only mpi4py can
// read, are made by the caller (WM_COLL_BY_MPI).
#ifndef WM_COMM_COLL_HOST_MPI_ENGINE_H
#define WM_COMM_COLL_HOST_MPI_ENGINE_H

#include "comm/coll/direct/coll_op.h"

extern const wm_coll_engine_t wm_mpi_engine;

#endif
