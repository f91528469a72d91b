// SPDX-License-Identifier: BSD-3-Clause
// What the methods of communicators share: the communicator behind an object,
// with the stream it is bound to. GIL held.
#ifndef WM_PYTHON_MESSAGE_CHANNEL_H
#define WM_PYTHON_MESSAGE_CHANNEL_H

#include "comm/comm/comm.h"
#include "comm/message/p2p.h"
#include "cuda/stream.h"
#include "python/core/arguments.h"
#include "python/message/specification.h"

// What a method works on: the communicator, and a stream where one was named.
typedef struct {
    wm_comm_t *comm;
    CUstream stream;
    int device;      // -1: no stream
    PyObject *owner; // of the stream, borrowed; NULL: no stream
} wm_channel_t;

// comm.on(stream), wm.StreamComm.
typedef struct {
    PyObject_HEAD
    PyObject *comm;
    PyObject *stream_object;
    CUstream stream;
    int device;
} wm_on_stream_t;

// Of a communicator, or of comm.on(stream). -1 with an exception where it was
// not attached, or MPI is not running.
int
wm_py_channel_get(PyObject *self, wm_channel_t *channel);

// With an exception, which stays: the communicator's error handler hears of it
// where it is one of MPI's (see wm_py_mpi_call_handler). Nothing is done for
// an object that is no communicator. Always NULL.
PyObject *
wm_py_channel_fail(PyObject *self, bool of_mpi);

wm_envelope_t
wm_py_channel_envelope(const wm_channel_t *channel, int rank, int tag,
                       bool blocking);

// The stream lives for as long as the memory of a message on it is in use.
void
wm_py_channel_keep(const wm_channel_t *channel, wm_message_t *message);

// Begins a message whose buffer was parsed, without the GIL.
// What the message does not need any longer stays in the buffer, which the
// caller releases once it has the GIL: to be released without costs more than
// a short message.
WM_MUST_CHECK int
wm_py_channel_begin_unlocked(const wm_channel_t *channel,
                             const wm_envelope_t *envelope, bool receives,
                             wm_buffer_t *buffer, wm_op_t **op,
                             wm_error_t *err);

// After an exception while the buffer of a send was looked at: where CUDA
// failed, or memory could not be had, the receiver, who may wait for the
// message already, is told. The exception stays.
void
wm_py_channel_tell_receiver(const wm_channel_t *channel,
                            const wm_envelope_t *envelope);

#endif
