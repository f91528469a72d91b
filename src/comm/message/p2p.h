// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point: sends and receives as operations. Engine lock not held.
// Calls that wait must not hold the GIL.
#ifndef WM_COMM_MESSAGE_P2P_H
#define WM_COMM_MESSAGE_P2P_H

#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"
#include "comm/engine/op.h"

typedef struct {
    int rank, tag;
    bool blocking;    // the caller waits for it
    bool synchronous; // completes only when matched (Ssend)
    bool paired;      // a blocking receive was begun in the same call
    bool more;  // others begin at once and may share its kernel; the caller
                // calls wm_send_flush()
    bool eager; // blocking, any size: copied if no receiver comes soon
    bool requested; // the MPI request is made as well, if possible
    bool buffered;  // Bsend: sends a copy that fits the user's buffer
    wm_unexpected_t *matched; // the message to receive; taken over on success
    CUstream stream;          // comm.on(stream)
    int stream_device;        // -1: none
    bool uncaptured; // the caller has found that the stream is in no capture
} wm_envelope_t;

// Begin a message; take over `buffer` in every case. On success *op has the
// caller's reference. Argument errors (rank, tag, a stream that is being
// captured) and MPI's errors are returned here, and nothing was sent. If CUDA
// fails before the header of a send has left, the send carries the reason,
// which the receiver raises. Such a send begins as any other; its own error
// comes with its end.
WM_MUST_CHECK int
wm_send_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

WM_MUST_CHECK int
wm_receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                 const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

// Returns true if a receive has received a pickled object.
bool
wm_receive_is_pickled(const wm_op_t *op);

// Begins to wait for a message that could be received; op->result describes it
// at the end. MPI_PROC_NULL ends at once. The message stays in the queue. With
// `matched` it leaves the queue, and can be received only after
// wm_probe_matched().
WM_MUST_CHECK int
wm_probe_begin(wm_comm_t *comm, int rank, int tag, bool matched, wm_op_t **op,
               wm_error_t *err);

// Takes the message that a matching probe has found; NULL: none.
wm_unexpected_t *
wm_probe_matched(wm_op_t *op);

// Puts a matched message that nobody received back into the unexpected queue.
void
wm_matched_return(wm_comm_t *comm, wm_unexpected_t *matched);

// Returns an operation that ends when a receive and a send have both ended.
// Its result is that of the receive, whose error comes first. Takes over both
// references. NULL: out of memory; both end by themselves.
wm_op_t *
wm_pair_begin(wm_op_t *receiving, wm_op_t *sending);

// Waits, without the lock, for producers that name no stream (unless
// comm.on(stream) names one and no order of ours is involved), and for host
// memory that a GPU still uses. Returns WM_ERR_STATE if a stream of the
// message is being captured.
WM_MUST_CHECK int
wm_await_producer(const wm_buffer_t *buffer, wm_producer_t *producer,
                  const wm_envelope_t *envelope, bool to_write,
                  wm_error_t *err);

// Returns true if the receiver must be told of an error with this code: CUDA,
// the system, or memory, before a message was on its way. For mistakes of the
// caller nothing is sent.
bool
wm_send_tells(int code);

// Sends an error instead of a message, as CUDA could not even be asked about
// the buffer. The receiver raises it with this text.
void
wm_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope,
                const char *text);

// Launches the kernels of messages that were begun together.
void
wm_send_flush(void);

#endif
