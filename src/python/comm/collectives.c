// SPDX-License-Identifier: BSD-3-Clause
// Collectives that take GPU arrays: a mixin below CommMethods.
#include <stdbool.h>
#include <stdlib.h>

#include "comm/coll/coll.h"
#include "comm/coll/slab.h"
#include "comm/message/element.h"
#include "comm/message/p2p.h"
#include "comm/message/pattern.h"
#include "comm/watch/hang.h"
#include "python/comm/reduced.h"
#include "python/message/channel.h"
#include "python/message/specification.h"

// What a report of a hang is to call it.
static void
enter(const char *name, const wm_message_t *message)
{
    wm_call = (wm_call_t){
        .name = name,
        .collective = true,
        .type = message != NULL ? message->type : MPI_DATATYPE_NULL,
        .nbytes = message != NULL ? message->buffer.nbytes : 0,
    };
}

// Raises failures of calls on streams after this call, which all ranks have
// made, has ended.
static PyObject *
none_heard(const wm_channel_t *channel, int code, wm_error_t *err)
{
    if (code == 0)
        code = wm_slabs_hear(channel->comm->slabs, err);
    return wm_py_none(code, err);
}

PyDoc_STRVAR(
    comm_Barrier_doc,
    "Barrier($self, /)\n--\n\n"
    "Wait for all ranks; GPU memory freed before it can be allocated\n"
    "after it.");

static PyObject *
comm_Barrier(PyObject *self, PyObject *Py_UNUSED(unused))
{
    wm_channel_t channel;
    wm_error_t err;
    int code;
    if (wm_py_channel_get(self, &channel) < 0)
        return wm_py_channel_fail(self, false);
    enter("Barrier", NULL);
    WM_PY_UNLOCKED(code = wm_coll_barrier(channel.comm->whole, &err));
    PyObject *result = none_heard(&channel, code, &err);
    return result != NULL ? result : wm_py_channel_fail(self, false);
}

// With an exception, which stays: the others may be in the collective already.
static void
refuse(const wm_channel_t *channel)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    enter("a collective", NULL);
    WM_PY_UNLOCKED(wm_coll_refuse(channel->comm));
    PyErr_Restore(kind, value, trace);
}

// Where CUDA failed while the buffer was looked at.
static PyObject *
tell_others(const wm_channel_t *channel)
{
    if (PyErr_ExceptionMatches(wm_py_state->cuda_error))
        refuse(channel);
    return NULL;
}

PyDoc_STRVAR(
    comm_Bcast_doc,
    "Bcast($self, /, buf, root=0)\n--\n\n"
    "Send root's array to all ranks: from GPU to GPU within a host, else\n"
    "through page-locked host memory. The counts must agree, the kinds of\n"
    "memory, strides and derived datatypes need not.\n"
    "Raises on all ranks: MPI.Exception (counts, roots), TypeError\n"
    "(another call), wm.CudaError.");

static PyObject *
collectives_bcast(PyObject *self, PyObject *const *args, Py_ssize_t given,
                  PyObject *keywords)
{
    static const char *const names[] = {"buf", "root"};
    PyObject *values[2];
    wm_channel_t channel;
    wm_message_t message;
    wm_error_t err;
    int code, root = 0;
    if (wm_py_arguments("Bcast", names, 2, 1, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[1], "root", &root) < 0)
        return NULL;
    if (root < 0 || root >= channel.comm->size) {
        wm_py_mpi_fail(
            MPI_ERR_ROOT,
            "root=%d is not a rank of this communicator: use 0 to %d", root,
            channel.comm->size - 1);
        return NULL;
    }
    bool sends = channel.comm->rank == root;
    if (wm_py_argument_no_none(values[0], "buf", root) < 0
        || wm_py_message_parse(values[0], !sends, "buf", &message) < 0)
        return tell_others(&channel);
    enter("Bcast", &message);
    WM_PY_UNLOCKED(
        code = wm_coll_bcast(channel.comm, &message.buffer, root, &err));
    wm_py_message_release(&message);
    return none_heard(&channel, code, &err);
}

// Also where both are named differently: long and int64_t.
static bool
is_same(MPI_Datatype one, MPI_Datatype other)
{
    int64_t number = wm_element_number(one);
    return one == other
           || (wm_element_is_known(number)
               && number == wm_element_number(other));
}

static int
check_reduction(const wm_message_t *send, const wm_message_t *receive,
                PyObject *recvbuf)
{
    // Not in words of ours, or not in MPI's: bytes, unless they are given so.
    bool unknown = receive->type == MPI_DATATYPE_NULL
                   || (receive->type == MPI_BYTE && receive->datatype == NULL);
    if (unknown && recvbuf != Py_None
        && wm_py_reduced_on_device(recvbuf, "recvbuf") < 0)
        return -1;
    if (send != NULL && send->buffer.nbytes != receive->buffer.nbytes) {
        PyErr_Format(PyExc_ValueError,
                     "sendbuf has %zu bytes, recvbuf %zu; they must be equal",
                     send->buffer.nbytes, receive->buffer.nbytes);
        return -1;
    }
    if (send != NULL && !is_same(send->type, receive->type)) {
        PyErr_SetString(PyExc_TypeError,
                        "sendbuf and recvbuf have different element types; "
                        "give both the same");
        return -1;
    }
    return 0;
}

// Elements with gaps are MPI's to step over: what stands for them in host
// memory has the gaps, too.
static int
parse_elements(const wm_channel_t *channel, PyObject *object, bool writable,
               const char *argument, wm_message_t *message)
{
    if (wm_py_argument_no_none(object, argument, 0) < 0
        || wm_py_message_parse_gaps(object, writable, argument,
                                    WM_GAPS_OF_ANY_ARRAYS, message)
               < 0) {
        tell_others(channel);
        return -1;
    }
    if (message->user == NULL)
        return 0;
    wm_py_message_widen(message);
    if (message->whole || !wm_buffer_on_device(&message->buffer))
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "%s: %zu elements whose extent is %zu bytes are not within "
                 "as many bytes from the first on; give GPU memory of which "
                 "each has its whole extent, or host memory",
                 argument, (size_t)message->count, message->extent);
    wm_py_message_release(message);
    refuse(channel);
    return -1;
}

// Fills *flat with what MPI is given for a buffer: the buffer, or, of a host
// array with gaps, memory without, from malloc, with what the array holds
// where it is read.
static int
flatten(const wm_buffer_t *buffer, bool reads, wm_buffer_t *flat,
        wm_error_t *err)
{
    const wm_pattern_t *pattern = buffer->pattern;
    wm_envelope_t nowhere = {.stream_device = -1};
    wm_producer_t producer = buffer->producer;
    *flat = *buffer;
    if (pattern == NULL || wm_buffer_on_device(buffer) || buffer->nbytes == 0)
        return 0;
    flat->pattern = NULL;
    flat->memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    flat->producer = (wm_producer_t){.kind = WM_PRODUCER_NONE};
    flat->data = malloc(buffer->nbytes);
    if (flat->data == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_settle_producer(buffer, &producer, &nowhere, !reads, err);
    return code == 0 && reads ? wm_pattern_copy_part(
               pattern, 0, flat->data, buffer->nbytes, true, -1, NULL, err)
                              : code;
}

// Lets go of it, and brings back what was received.
static int
unflatten(const wm_buffer_t *buffer, const wm_buffer_t *flat, bool received,
          wm_error_t *err)
{
    if (flat->data == buffer->data)
        return 0;
    int code = received
                   ? wm_pattern_copy_part(buffer->pattern, 0, flat->data,
                                          buffer->nbytes, false, -1, NULL, err)
                   : 0;
    free(flat->data);
    return code;
}

// `sent` NULL: in place. Engine lock and GIL not held.
static int
reduce_on_all(wm_comm_t *comm, const wm_message_t *sent,
              const wm_message_t *received, MPI_Op op, wm_error_t *err)
{
    wm_buffer_t send = {0}, receive;
    wm_error_t wrong;
    int code = flatten(&received->buffer, sent == NULL, &receive, err);
    if (code == 0 && sent != NULL)
        code = flatten(&sent->buffer, true, &send, err);
    if (code < 0)
        wm_coll_refuse(comm); // the others may be in it already
    else
        code = wm_coll_allreduce(comm, sent != NULL ? &send : NULL, &receive,
                                 received->type, received->size, op, err);
    if (sent != NULL && send.data != NULL)
        (void)!unflatten(&sent->buffer, &send, false, &wrong);
    int stored = unflatten(&received->buffer, &receive, code == 0, &wrong);
    if (code == 0 && stored < 0)
        *err = wrong;
    return code < 0 ? code : stored;
}

PyDoc_STRVAR(
    comm_Allreduce_doc,
    "Allreduce($self, /, sendbuf, recvbuf, op=...)\n--\n\n"
    "Reduce elementwise over all ranks, by MPI.SUM unless op is given.\n\n"
    "sendbuf may be MPI.IN_PLACE. GPU arrays, also strided ones, are reduced\n"
    "on the GPUs within a host, in the order of the ranks, else through\n"
    "page-locked host memory. Raises on all ranks: MPI.Exception (counts), "
    "TypeError\n"
    "(element types, another call), wm.CudaError.");

static PyObject *
collectives_allreduce(PyObject *self, PyObject *const *args, Py_ssize_t given,
                      PyObject *keywords)
{
    static const char *const names[] = {"sendbuf", "recvbuf", "op"};
    PyObject *values[3];
    wm_channel_t channel;
    wm_message_t sent, received;
    wm_error_t err;
    MPI_Op op = MPI_SUM;
    if (wm_py_arguments("Allreduce", names, 3, 2, args, given, keywords,
                        values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || (values[2] != NULL && wm_py_mpi_op(values[2], "op", &op) < 0))
        return NULL;
    // As for mpi4py, None is in place, too.
    bool in_place = values[0] == Py_None || wm_py_mpi_is_in_place(values[0]);
    if (parse_elements(&channel, values[1], true, "recvbuf", &received) < 0)
        return NULL;
    if (!in_place
        && parse_elements(&channel, values[0], false, "sendbuf", &sent) < 0) {
        wm_py_message_release(&received);
        return NULL;
    }
    int code = wm_py_reduced_name(&received, op);
    if (code == 0 && !in_place)
        code = wm_py_reduced_name(&sent, op);
    if (code == 0)
        code = check_reduction(in_place ? NULL : &sent, &received, values[1]);
    if (code == 0) {
        enter("Allreduce", &received);
        WM_PY_UNLOCKED(code = reduce_on_all(channel.comm,
                                            in_place ? NULL : &sent, &received,
                                            op, &err));
        if (code == 0)
            code = wm_slabs_hear(channel.comm->slabs, &err);
        if (code < 0)
            wm_py_raise(&err);
    }
    if (!in_place)
        wm_py_message_release(&sent);
    wm_py_message_release(&received);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

// The communicator's error handler hears of their errors.
#define METHOD(name, function)                                                \
    static PyObject *name(PyObject *self, PyObject *const *args,              \
                          Py_ssize_t given, PyObject *keywords)               \
    {                                                                         \
        PyObject *result = function(self, args, given, keywords);             \
        return result != NULL ? result : wm_py_channel_fail(self, false);     \
    }
METHOD(comm_Bcast, collectives_bcast)
METHOD(comm_Allreduce, collectives_allreduce)

static PyMethodDef methods[] = {
    WM_PY_FASTCALL("Bcast", comm_Bcast),
    WM_PY_FASTCALL("Allreduce", comm_Allreduce),
    {"Barrier", comm_Barrier, METH_NOARGS, comm_Barrier_doc},
    {0},
};

PyDoc_STRVAR(collectives_doc, "The collectives that take GPU arrays.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)collectives_doc},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec wm_py_collectives_spec = {
    .name = "warpmpi._core._Collectives",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};
