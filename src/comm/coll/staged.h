// SPDX-License-Identifier: BSD-3-Clause
// Calls of MPI's own on GPU memory, or on host memory with gaps. MPI is given
// a staging copy instead: host memory without gaps, page-locked for GPU
// memory. Here are the copies between the two, and an operation that ends when
// the call has ended and its staging copy was copied back. Engine lock not
// held; the GIL is released by the caller.
#ifndef WM_COMM_COLL_STAGED_H
#define WM_COMM_COLL_STAGED_H

#include "comm/engine/buffer.h"
#include "comm/engine/op.h"

// Bytes of a buffer and, at the same offset, of its staging copy: `rows` rows,
// `length` bytes each, the first at `offset`, `stride` from one to the next.
typedef struct {
    size_t offset, length, rows, stride;
} wm_run_t;

// A call under way.
typedef struct wm_staged {
    MPI_Status status; // of MPI's own request
    char *staging;
    bool cancels; // MPI's request is one of a message, which MPI_Cancel takes
    size_t count;
    wm_run_t runs[];
} wm_staged_t;

// Whether the runs lie within `nbytes`.
bool
wm_runs_fit(const wm_run_t *runs, size_t count, size_t nbytes);

// Copies the runs from a buffer to its staging copy, or back, and waits for
// them, behind the producer's work. A producer without a stream is waited for
// (the buffer is told so). The buffer stays the caller's.
WM_MUST_CHECK int
wm_staged_copy(wm_buffer_t *buffer, char *staging, const wm_run_t *runs,
               size_t count, bool to_host, wm_error_t *err);

// A new operation, with one reference for the caller, that ends when `request`
// has ended and the runs are copied back to the buffer. Takes over the buffer
// and `staged` (from malloc) and, unless it is persistent, the request. Where
// memory is short it waits for the request instead, and fails. `comm`, unless
// NULL, is kept until the operation ends: Open MPI 4.1 looks at the
// communicator of a request that ends.
WM_MUST_CHECK int
wm_staged_begin(wm_comm_t *comm, wm_buffer_t *buffer, wm_staged_t *staged,
                MPI_Request request, wm_op_t **op, wm_error_t *err);

#endif
