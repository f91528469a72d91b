// SPDX-License-Identifier: BSD-3-Clause
// MPI's own calls on GPU memory, or on host memory with gaps. MPI gets a
// staging copy: host memory without gaps, page-locked for GPU memory. This
// file copies between the two, and has an operation that ends when the call
// has ended and its staging copy is copied back. Engine lock not held; the GIL
// is released by the caller.
#ifndef WM_COMM_COLL_MPI_STAGED_H
#define WM_COMM_COLL_MPI_STAGED_H

#include "array/reduce.h"
#include "array/strided.h"
#include "comm/engine/buffer.h"
#include "comm/engine/op.h"

// Sums to divide before they are copied back; ranks 0: none.
typedef struct {
    wm_reduce_type_t type;
    int ranks;
} wm_staged_average_t;

// A call under way.
typedef struct wm_staged {
    MPI_Status status; // status of MPI's own request
    char *staging;
    bool cancels; // MPI_Cancel takes the request, as it is of a message
    bool refused; // raises at its end, as it may not stage (require.h)
    wm_staged_average_t average;
    size_t count;
    wm_strided_t runs[]; // in the staging copy; the buffer's have the same
                         // offsets
} wm_staged_t;

// Returns true if the runs lie within a staging copy of `nbytes`.
bool
wm_runs_fit(const wm_strided_t *runs, size_t count, const char *staging,
            size_t nbytes);

// Waits for the producer of host memory, and marks the producer.
WM_MUST_CHECK int
wm_staged_await(const wm_buffer_t *buffer, wm_producer_t *producer,
                bool to_write, wm_error_t *err);

// Copies the runs from a buffer to its staging copy, or back, after the
// producer's work. Waits for the copies. Also waits for a producer without a
// stream, and marks the buffer. The caller keeps the buffer.
WM_MUST_CHECK int
wm_staged_copy(wm_buffer_t *buffer, const wm_staged_t *staged, bool to_host,
               wm_error_t *err);

// Enqueues the copies of the runs, behind the producer's work; if `device` is
// -1, copies host memory at once.
WM_MUST_CHECK int
wm_staged_enqueue(const wm_buffer_t *buffer, const wm_staged_t *staged,
                  bool to_host, int device, CUstream stream, wm_error_t *err);

// Divides the elements of the staging copy's runs.
void
wm_staged_divide(const wm_staged_t *staged);

// Makes an operation, with one reference for the caller, that ends when
// `request` has ended and the runs are copied back to the buffer. Takes over
// the buffer, `staged` (from malloc) and, unless it is persistent, the
// request. If memory is short, waits for the request and fails. `comm`, unless
// NULL, is kept until the operation ends: Open MPI 4.1 looks at the
// communicator of a request that ends.
WM_MUST_CHECK int
wm_staged_begin(wm_comm_t *comm, wm_buffer_t *buffer, wm_staged_t *staged,
                MPI_Request request, wm_op_t **op, wm_error_t *err);

#endif
