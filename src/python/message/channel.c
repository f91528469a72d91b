// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/channel.h"

#include "comm/engine/engine.h"
#include "comm/protocol/inline.h"

int
wm_py_channel_get(PyObject *self, wm_channel_t *channel)
{
    MPI_Comm handle;
    *channel = (wm_channel_t){.device = -1};
    if (Py_TYPE(self) == wm_py_state->on_stream_type) {
        wm_on_stream_t *bound = (wm_on_stream_t *)self;
        channel->stream = bound->stream;
        channel->device = bound->device;
        channel->owner = bound->stream_object;
        self = bound->comm;
    }
    if (wm_py_mpi_comm(self, "self", &handle) < 0 || wm_py_check_running() < 0)
        return -1;
    if (handle == MPI_COMM_NULL)
        return wm_py_mpi_fail(
            MPI_ERR_COMM, "this communicator is MPI.COMM_NULL, or was freed");
    channel->comm = wm_comm_find(handle);
    if (channel->comm == NULL)
        return wm_py_fail(
            PyExc_RuntimeError,
            "this communicator is not attached to warpmpi: either none of its "
            "ranks has a GPU, and mpi4py makes all its calls, or all its "
            "ranks must call wm.Comm(comm); if another library initialized "
            "MPI after install(), call install() again");
    return 0;
}

PyObject *
wm_py_channel_fail(PyObject *self, bool of_mpi)
{
    MPI_Comm handle;
    if (Py_TYPE(self) == wm_py_state->on_stream_type)
        self = ((wm_on_stream_t *)self)->comm;
    if (wm_py_mpi_is_comm(self, &handle)) // null: MPI uses COMM_WORLD's
        wm_py_mpi_call_handler(
            handle != MPI_COMM_NULL ? handle : MPI_COMM_WORLD, of_mpi);
    return NULL;
}

wm_envelope_t
wm_py_channel_envelope(const wm_channel_t *channel, int rank, int tag,
                       bool blocking)
{
    return (wm_envelope_t){
        .rank = rank,
        .tag = tag,
        .blocking = blocking,
        .stream = channel->stream,
        .stream_device = channel->device,
    };
}

void
wm_py_channel_keep(const wm_channel_t *channel, wm_message_t *message)
{
    if (channel->owner != NULL)
        wm_py_message_keep(message, channel->owner);
}

void
wm_py_send_failure(wm_comm_t *comm, const wm_envelope_t *envelope)
{
    wm_error_t err;
    (void)wm_py_describe(WM_ERR_CUDA, &err);
    WM_PY_UNLOCKED(wm_send_failure(comm, envelope, err.text));
}

void
wm_py_channel_tell_receiver(const wm_channel_t *channel,
                            const wm_envelope_t *envelope)
{
    if (PyErr_ExceptionMatches(wm_py_state->cuda_error)
        || PyErr_ExceptionMatches(PyExc_MemoryError))
        wm_py_send_failure(channel->comm, envelope);
}

int
wm_py_channel_is_captured(const wm_channel_t *channel,
                          const wm_envelope_t *sent)
{
    wm_error_t err;
    uint64_t capture = 0;
    int code;
    if (channel->device < 0)
        return 0;
    WM_PY_UNLOCKED(code = wm_stream_capture(channel->device, channel->stream,
                                            &capture, &err));
    if (code == 0)
        return capture != 0;
    wm_py_raise(&err);
    if (sent != NULL)
        wm_py_channel_tell_receiver(channel, sent);
    return -1;
}

int
wm_py_channel_begin_unlocked(const wm_channel_t *channel,
                             const wm_envelope_t *envelope, bool receives,
                             wm_buffer_t *buffer, wm_op_t **op,
                             wm_error_t *err)
{
    wm_comm_t *comm = channel->comm;
    if (!receives && wm_inline_fits(comm, buffer, envelope))
        return wm_inline_send(comm, buffer, envelope, op, err);
    int code = receives ? wm_receive_begin(comm, buffer, envelope, op, err)
                        : wm_send_begin(comm, buffer, envelope, op, err);
    buffer->release = NULL; // the operation releases it
    return code;
}
