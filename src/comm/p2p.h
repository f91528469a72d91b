// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point: sends and receives as operations. Engine lock not held; the
// GIL may be held by none of the calls that wait.
#ifndef WM_COMM_P2P_H
#define WM_COMM_P2P_H

#include "comm/op.h"

typedef struct {
    int rank, tag;
    bool blocking;     // the caller waits for it
    bool synchronous;  // completes only once matched (Ssend)
    CUstream stream;   // comm.on(stream)
    int stream_device; // -1: none
} wm_envelope_t;

// Begin a message; take over `buffer` in every case. On success *op carries
// the caller's reference. Argument errors (rank, tag) and whatever goes wrong
// before the header is on its way are told here, and nothing was sent.
WM_MUST_CHECK int
wm_send_begin(wm_comm_t *comm, wm_buffer_t *buffer,
              const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

WM_MUST_CHECK int
wm_receive_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                 const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

// What both ends do first: checks, waiting for producers that name no stream,
// a new operation with one reference, done at once for PROC_NULL.
WM_MUST_CHECK int
wm_begin_op(wm_comm_t *comm, wm_buffer_t *buffer,
            const wm_envelope_t *envelope, bool receives, wm_op_t **op,
            wm_error_t *err);

// Waits, without the lock, for producers that name no stream and for host
// memory that a GPU still uses.
WM_MUST_CHECK int
wm_settle_producer(wm_buffer_t *buffer, const wm_envelope_t *envelope,
                   bool to_write, wm_error_t *err);

// Instead of a message whose buffer CUDA could not even be asked about: the
// receiver raises with this text.
void
wm_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope,
                const char *text);

// Waits for the end. An interrupted receive that was not matched is taken
// back; WM_ERR_PYTHON then. The operation's own error otherwise.
WM_MUST_CHECK int
wm_op_wait(wm_op_t *op, bool (*interrupted)(void), wm_error_t *err);

// Cancels a receive that has not been matched; whether it was.
bool
wm_op_cancel(wm_op_t *op);

#endif
