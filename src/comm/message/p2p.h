// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point: sends and receives as operations. Engine lock not held; the
// GIL may be held by none of the calls that wait.
#ifndef WM_COMM_MESSAGE_P2P_H
#define WM_COMM_MESSAGE_P2P_H

#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"
#include "comm/engine/op.h"

typedef struct {
    int rank, tag;
    bool blocking;    // the caller waits for it
    bool synchronous; // completes only once matched (Ssend)
    bool paired;      // a blocking receive was begun in the same call
    bool more;        // others are begun at once, whose kernel it may wait
                      // for: the caller ends with wm_send_flush()
    bool eager;       // blocking: of any size, it is copied where the receiver
                      // does not come soon
    bool requested;   // an MPI request is made in the same go, if it can be
    bool buffered;    // Bsend: of a copy that fits the user's buffer
    wm_unexpected_t *matched; // to receive this message: taken over once the
                              // receive has begun
    CUstream stream;          // comm.on(stream)
    int stream_device;        // -1: none
} wm_envelope_t;

// Begin a message; take over `buffer` in every case. On success *op carries
// the caller's reference. Argument errors (rank, tag, a stream that is being
// captured) and MPI's are told here, and nothing was sent. A send that CUDA
// fails before its header is on its way sends the reason instead, for the
// receiver to raise, and is told here like a message: its own error comes with
// its end.
WM_MUST_CHECK int
wm_send_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

WM_MUST_CHECK int
wm_receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                 const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

// Whether what a receive has received is the pickle of an object.
bool
wm_receive_is_pickled(const wm_op_t *op);

// Begins to wait for a message that could be received; op->result tells of it
// at the end. MPI_PROC_NULL at once. It stays where it is, or is `matched`:
// then only who takes it from the operation can receive it.
WM_MUST_CHECK int
wm_probe_begin(wm_comm_t *comm, int rank, int tag, bool matched, wm_op_t **op,
               wm_error_t *err);

// Takes the message a matching probe has found; NULL where there is none.
wm_unexpected_t *
wm_probe_take(wm_op_t *op);

// Gives a matched message that nobody received back to the communicator.
void
wm_matched_return(wm_comm_t *comm, wm_unexpected_t *matched);

// One operation that ends when both have: a receive, whose result it tells,
// and a send; the receive's error comes first. Takes over their references.
// NULL when memory is exhausted: they end by themselves.
wm_op_t *
wm_pair_begin(wm_op_t *receiving, wm_op_t *sending);

// What both ends do next: waits, without the lock, for producers that name no
// stream (unless comm.on(stream) names one and no order of ours is involved)
// and for host memory that a GPU still uses. WM_ERR_STATE where a stream of
// the message is being captured.
WM_MUST_CHECK int
wm_settle_producer(const wm_buffer_t *buffer, wm_producer_t *producer,
                   const wm_envelope_t *envelope, bool to_write,
                   wm_error_t *err);

// Whether the receiver is told of what failed with this code before a message
// was on its way: CUDA, the system, or memory that could not be had. Of the
// caller's mistakes nothing is sent.
bool
wm_send_tells(int code);

// Instead of a message whose buffer CUDA could not even be asked about: the
// receiver raises with this text.
void
wm_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope,
                const char *text);

// Launches the kernels of messages that were begun together.
void
wm_send_flush(void);

#endif
