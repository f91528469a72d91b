// SPDX-License-Identifier: BSD-3-Clause
// A reduction of what one rank has in GPU memory: into = read op into. GIL
// released by the caller. The buffers stay the caller's, who releases them.
#ifndef WM_COMM_COLL_LOCAL_H
#define WM_COMM_COLL_LOCAL_H

#include <mpi.h>

#include "comm/engine/buffer.h"

// Of elements of `size` bytes each; complete when it returns. 1 where MPI is
// to do it: of memory that is not of one GPU, of other elements and
// operations.
WM_MUST_CHECK int
wm_local_reduce(const wm_buffer_t *read, const wm_buffer_t *into,
                MPI_Datatype type, size_t size, MPI_Op op, wm_error_t *err);

#endif
