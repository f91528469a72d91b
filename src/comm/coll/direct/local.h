// SPDX-License-Identifier: BSD-3-Clause
// A reduction of two buffers in one rank's GPU memory: into = read op into.
// GIL released by the caller. The caller keeps the buffers and releases them.
#ifndef WM_COMM_COLL_DIRECT_LOCAL_H
#define WM_COMM_COLL_DIRECT_LOCAL_H

#include <mpi.h>

#include "comm/engine/buffer.h"

// Reduces elements of `size` bytes; complete on return. Returns 1 if MPI must
// do it: the memory is not on one GPU, or kernels do not know the type or the
// operation.
WM_MUST_CHECK int
wm_local_reduce(const wm_buffer_t *read, const wm_buffer_t *into,
                MPI_Datatype type, size_t size, MPI_Op op, wm_error_t *err);

#endif
