// SPDX-License-Identifier: BSD-3-Clause
// Partitioned messages (MPI_Psend_init): one message, of `comm->parts`, that
// is begun when the last of its partitions is ready. Requests of the same two
// ranks and tag find each other by the order in which they were made, which
// both ends count: the number that comes of it is the message's tag.
#ifndef WM_COMM_PARTITIONED_H
#define WM_COMM_PARTITIONED_H

#include "comm/op.h"

// So many requests with one rank and tag, in one direction, at a time.
#define WM_PARTITIONED_AT_ONCE 16

typedef struct wm_counted wm_counted_t; // per rank, tag and direction

// The number of a new request. WM_ERR_MPI with MPI_ERR_TAG for a tag that is
// too large, and MPI_ERR_PENDING for too many requests.
WM_MUST_CHECK int
wm_partitioned_number(wm_comm_t *comm, int rank, int tag, bool receives,
                      int *number, wm_error_t *err);

// The request is gone.
void
wm_partitioned_give_back(wm_comm_t *comm, int rank, int tag, bool receives,
                         int number);

void
wm_partitioned_drop(wm_counted_t *counted);

// An operation with one reference that waits for its message to be begun.
// NULL when memory is exhausted.
wm_op_t *
wm_gate_new(wm_comm_t *comm, int tag, bool receives);

// It ends when the message has, and tells its result with its own tag. Takes
// over the message's reference.
void
wm_gate_open(wm_op_t *gate, wm_op_t *message);

// It ends now: there will be no message.
void
wm_gate_fail(wm_op_t *gate, const wm_error_t *err);

#endif
