// SPDX-License-Identifier: BSD-3-Clause
// Collectives: nonblocking ones of MPI on a private communicator, waited for
// in our progress loop. GPU buffers go through page-locked memory, piece by
// piece. What has begun cannot be taken back, so nothing here can be
// interrupted. GIL released by the caller. Release of the buffers is the
// caller's.
#ifndef WM_COMM_COLL_H
#define WM_COMM_COLL_H

#include "comm/op.h"

// Also closes mappings of memory that any rank has freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

WM_MUST_CHECK int
wm_coll_bcast(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
              wm_error_t *err);

// `send` NULL: in place. Elements of `size` bytes of an MPI type.
WM_MUST_CHECK int
wm_coll_allreduce(wm_comm_t *comm, const wm_buffer_t *send,
                  const wm_buffer_t *receive, MPI_Datatype type, size_t size,
                  MPI_Op op, wm_error_t *err);

#endif
