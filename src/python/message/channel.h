// SPDX-License-Identifier: BSD-3-Clause
// The communicator behind an object, with the stream it is bound to, which all
// methods of communicators start from. GIL held.
#ifndef WM_PYTHON_MESSAGE_CHANNEL_H
#define WM_PYTHON_MESSAGE_CHANNEL_H

#include "comm/comm/comm.h"
#include "comm/message/p2p.h"
#include "cuda/stream.h"
#include "python/core/arguments.h"
#include "python/message/specification.h"

// The communicator that a method works on, and the stream if one was named.
typedef struct {
    wm_comm_t *comm;
    CUstream stream;
    int device;      // -1: no stream
    PyObject *owner; // owner of the stream, borrowed; NULL: no stream
} wm_channel_t;

// comm.on(stream), wm.StreamComm.
typedef struct {
    PyObject_HEAD
    PyObject *comm;
    PyObject *stream_object;
    CUstream stream;
    int device;
} wm_on_stream_t;

// Finds the channel of a communicator or of comm.on(stream). Returns 0, or -1
// with an exception if it was not attached, or MPI is not running.
int
wm_py_channel_get(PyObject *self, wm_channel_t *channel);

// Called with an exception set, which stays: tells the communicator's error
// handler if the exception is MPI's (see wm_py_mpi_call_handler). Does nothing
// for other objects. Returns NULL.
PyObject *
wm_py_channel_fail(PyObject *self, bool of_mpi);

// Returns the envelope of a message with that rank and tag on the channel.
wm_envelope_t
wm_py_channel_envelope(const wm_channel_t *channel, int rank, int tag,
                       bool blocking);

// Keeps the stream alive as long as the memory of a message on it is in use.
void
wm_py_channel_keep(const wm_channel_t *channel, wm_message_t *message);

// Begins a message whose buffer was parsed, without the GIL. The rest of the
// buffer that the message does not need stays with the caller, who releases it
// once the GIL is held: a release without the GIL costs more than a short
// message.
WM_MUST_CHECK int
wm_py_channel_begin_unlocked(const wm_channel_t *channel,
                             const wm_envelope_t *envelope, bool receives,
                             wm_buffer_t *buffer, wm_op_t **op,
                             wm_error_t *err);

// Sends the receiver the reason, from the exception set, why an array cannot
// be sent; the receiver raises it. The exception stays.
void
wm_py_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope);

// Called with an exception set, after the buffer of a send could not be read:
// if CUDA failed, or memory is exhausted, tells the receiver, who may wait for
// the message. The exception stays.
void
wm_py_channel_tell_receiver(const wm_channel_t *channel,
                            const wm_envelope_t *envelope);

// Returns 1 if the channel's stream is being captured into a graph, else 0, or
// -1 with an exception, of which the receiver of `sent` is told; NULL: nothing
// is sent. Without a stream no driver call.
int
wm_py_channel_is_captured(const wm_channel_t *channel,
                          const wm_envelope_t *sent);

#endif
