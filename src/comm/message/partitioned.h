// SPDX-License-Identifier: BSD-3-Clause
// Partitioned messages (MPI_Psend_init): one message, of `comm->object_comm`,
// that is begun when the last of its partitions is ready. Requests of the same
// two ranks and tag find each other by the order in which they were made,
// which both ends count: the number that comes of it is the message's tag.
#ifndef WM_COMM_MESSAGE_PARTITIONED_H
#define WM_COMM_MESSAGE_PARTITIONED_H

#include <pthread.h>

#include "comm/message/p2p.h"

// A request may outlive so many later ones, less one, with the same rank, tag
// and direction: then their numbers come round again.
#define WM_PARTITIONED_NUMBERS 256

// Requests with one rank and tag in one direction. Outlives its communicator.
typedef struct wm_counted wm_counted_t;

// The number of a new request, and where to give it back. WM_ERR_MPI with
// MPI_ERR_TAG for a tag that is too large, and MPI_ERR_PENDING where a request
// of the same number is still there. No lock of the engine's.
WM_MUST_CHECK int
wm_partitioned_number(wm_comm_t *comm, int rank, int tag, bool receives,
                      int *number, wm_counted_t **counted, wm_error_t *err);

// The request is gone.
void
wm_partitioned_give_back(wm_counted_t *counted, int number);

// The communicator is gone.
void
wm_partitioned_drop(wm_counted_t *counted);

// An operation with one reference that waits for its message to be begun.
// NULL when memory is exhausted.
wm_op_t *
wm_gate_new(wm_comm_t *comm, int rank, int tag, bool receives);

// Begins its message, and takes over the buffer: the gate ends when that has,
// and tells its result with its own tag. Where it cannot begin the gate fails.
WM_MUST_CHECK int
wm_gate_begin(wm_op_t *gate, wm_comm_t *comm, const wm_envelope_t *envelope,
              wm_buffer_t *buffer, wm_error_t *err);

// It ends now: there will be no message.
void
wm_gate_fail(wm_op_t *gate, const wm_error_t *err);

// The partitions of a send under way.
typedef struct {
    pthread_mutex_t lock; // of who is next to make some ready
    int missing;          // that are not
    // One of the pool's, ordered behind the work on the streams that what is
    // ready was written on.
    CUstream behind;
    int device;
    bool is_behind;
} wm_partitions_t;

// So many more are ready, behind the work of the buffer's producer as it is
// now; with the last the message is begun, well or not. Takes over the buffer.
// On failure none is, unless that was it.
WM_MUST_CHECK int
wm_partitions_ready(wm_partitions_t *partitions, int marked, wm_op_t *gate,
                    wm_comm_t *comm, const wm_envelope_t *envelope,
                    wm_buffer_t *buffer, bool *begun, wm_error_t *err);

// Lets go of what they come behind.
void
wm_partitions_forget(wm_partitions_t *partitions);

#endif
