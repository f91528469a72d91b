// SPDX-License-Identifier: BSD-3-Clause
// Partitioned messages (MPI_Psend_init): one message, of `comm->object_comm`,
// that begins when the last of its partitions is ready. Requests of the same
// two ranks and tag find each other by the order in which they were made. Both
// ends count them, and this number is the message's tag.
#ifndef WM_COMM_MESSAGE_PARTITIONED_H
#define WM_COMM_MESSAGE_PARTITIONED_H

#include <pthread.h>

#include "comm/message/p2p.h"

// Numbers for requests with the same rank, tag and direction; after so many
// requests a number is used again. By then its last request must be freed.
#define WM_PARTITIONED_NUMBERS 256

// Requests with one rank and tag in one direction. Outlives its communicator.
typedef struct wm_counted wm_counted_t;

// Takes the number of a new request; *counted is where to give it back.
// WM_ERR_MPI with MPI_ERR_TAG if the tag is too large, with MPI_ERR_PENDING if
// the last request of this number is not freed. Needs no engine lock.
WM_MUST_CHECK int
wm_partitioned_number(wm_comm_t *comm, int rank, int tag, bool receives,
                      int *number, wm_counted_t **counted, wm_error_t *err);

// Gives back the number of a request that is freed.
void
wm_partitioned_give_back(wm_counted_t *counted, int number);

// Returns an operation, with one reference, that waits for its message to
// begin; NULL: out of memory.
wm_op_t *
wm_gate_new(wm_comm_t *comm, int rank, int tag, bool receives);

// Begins the gate's message, and takes over the buffer. The gate ends when the
// message has ended, with its result, but the gate's tag. If the message
// cannot begin, the gate fails.
WM_MUST_CHECK int
wm_gate_begin(wm_op_t *gate, wm_comm_t *comm, const wm_envelope_t *envelope,
              wm_buffer_t *buffer, wm_error_t *err);

// Ends the gate with an error: there will be no message.
void
wm_gate_fail(wm_op_t *gate, const wm_error_t *err);

// The partitions of a send under way.
typedef struct {
    pthread_mutex_t lock; // held while partitions become ready
    int missing;          // partitions that are not ready
    // A stream of the pool, ordered after the streams on which the ready
    // partitions were written.
    CUstream behind;
    int device;
    bool is_behind;
} wm_partitions_t;

// Makes `marked` more partitions ready, after the pending work of the buffer's
// producer. The last one begins the message, and sets *begun, also if that
// fails. Takes over the buffer. On failure no partition became ready, unless
// *begun is set.
WM_MUST_CHECK int
wm_partitions_ready(wm_partitions_t *partitions, int marked, wm_op_t *gate,
                    wm_comm_t *comm, const wm_envelope_t *envelope,
                    wm_buffer_t *buffer, bool *begun, wm_error_t *err);

// Releases the stream of the partitions.
void
wm_partitions_forget(wm_partitions_t *partitions);

#endif
