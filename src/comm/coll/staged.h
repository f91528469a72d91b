// SPDX-License-Identifier: BSD-3-Clause
// Calls of MPI's own on GPU memory, or on host memory with gaps, which are
// given a twin in host memory without gaps instead (page-locked, of a GPU's):
// what goes over between the two, and an operation that ends when such a call
// has ended and its twin was copied back. Engine lock not held; the GIL is
// released by the caller.
#ifndef WM_COMM_COLL_STAGED_H
#define WM_COMM_COLL_STAGED_H

#include "comm/engine/buffer.h"
#include "comm/engine/op.h"

// Bytes of a buffer and, at the same place, of its twin: `rows` rows of
// `length` bytes, the first at `offset`, each `stride` after the one before.
typedef struct {
    size_t offset, length, rows, stride;
} wm_run_t;

// A call under way.
typedef struct wm_staged {
    MPI_Status status; // of MPI's own request
    char *twin;
    bool cancels; // MPI's request is one of a message, which MPI_Cancel takes
    size_t count;
    wm_run_t runs[];
} wm_staged_t;

// Whether the runs lie within `nbytes`.
bool
wm_runs_fit(const wm_run_t *runs, size_t count, size_t nbytes);

// Copies the runs from a buffer to its twin, or back, and waits for them; what
// the producer has begun comes first, and is waited for where it has no stream
// (the buffer is told so). The buffer stays the caller's.
WM_MUST_CHECK int
wm_staged_copy(wm_buffer_t *buffer, char *twin, const wm_run_t *runs,
               size_t count, bool to_host, wm_error_t *err);

// A new operation, with one reference for the caller, that ends when `request`
// has ended and the runs of the twin are in the buffer. Takes over the buffer
// and `staged` (from malloc) and, unless it is persistent, the request. Where
// memory is short it waits for the request instead, and fails. `comm`, unless
// NULL, is kept until the operation ends: Open MPI 4.1 looks at the
// communicator of a request that ends.
WM_MUST_CHECK int
wm_staged_begin(wm_comm_t *comm, wm_buffer_t *buffer, wm_staged_t *staged,
                MPI_Request request, wm_op_t **op, wm_error_t *err);

#endif
