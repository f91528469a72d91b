// SPDX-License-Identifier: BSD-3-Clause
// Collectives of MPI on a private communicator, nonblocking and waited for in
// our progress loop where messages are under way, after all have agreed
// (agree.h). GPU buffers go through page-locked memory in pieces of 16 MiB.
// What has begun cannot be taken back, so nothing here can be interrupted;
// where one rank fails, or is in another collective, all raise. GIL released
// by the caller, engine lock not held. The buffers stay the caller's, who
// releases them.
#ifndef WM_COMM_COLL_COLL_H
#define WM_COMM_COLL_COLL_H

#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"

// Also closes mappings of memory that other ranks have freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

// Instead of a collective whose buffers CUDA could not even be asked about:
// the other ranks raise. Not for a barrier.
void
wm_coll_refuse(wm_comm_t *comm);

// As many bytes on every rank, in any kind of memory; with gaps only in that
// of the host.
WM_MUST_CHECK int
wm_coll_bcast(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
              wm_error_t *err);

// `send` NULL: in place, on all ranks or on none. As many elements, of `size`
// bytes, of one MPI type on every rank.
WM_MUST_CHECK int
wm_coll_allreduce(wm_comm_t *comm, const wm_buffer_t *send,
                  const wm_buffer_t *receive, MPI_Datatype type, size_t size,
                  MPI_Op op, wm_error_t *err);

#endif
