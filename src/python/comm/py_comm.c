// SPDX-License-Identifier: BSD-3-Clause
// CommMethods: the calls of communicators that take GPU arrays. A mixin
// without state of its own, so that one set of methods serves all types.
#include "comm/comm/failure.h"
#include "comm/comm/host_only.h"
#include "comm/engine/engine.h"
#include "python/comm/calls.h"
#include "python/message/channel.h"

PyDoc_STRVAR(
    comm_attach_doc,
    "_attach($self, parent, /)\n--\n\n"
    "Make the private communicators behind this handle; collective.\n\n"
    "No private communicators are made if no rank has a GPU. parent:\n"
    "a communicator that contains all processes of this one, and\n"
    "whose ranks know whether any has a GPU. None: the ranks find\n"
    "that out.");

static PyObject *
comm_attach(PyObject *self, PyObject *parent)
{
    MPI_Comm handle, former = MPI_COMM_NULL;
    wm_error_t err;
    int code;
    if (wm_py_mpi_comm(self, "self", &handle) < 0
        || (parent != Py_None
            && wm_py_mpi_comm(parent, "parent", &former) < 0))
        return NULL;
    WM_PY_UNLOCKED(code = wm_host_only_attach(handle, former, &err));
    return wm_py_none(code, &err);
}

PyDoc_STRVAR(comm_revoke_doc,
             "_revoke($self)\n--\n\n"
             "Revoke the private communicators. Calls on them end on all\n"
             "ranks.");

static PyObject *
comm_revoke(PyObject *self, PyObject *Py_UNUSED(unused))
{
    wm_channel_t channel;
    wm_error_t err;
    if (wm_py_channel_get(self, &channel) < 0)
        return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_lock();
    code = wm_failure_revoke(channel.comm, &err);
    wm_engine_unlock();
    Py_END_ALLOW_THREADS;
    return wm_py_none(code, &err);
}

PyDoc_STRVAR(
    comm_on_doc,
    "on($self, stream, /)\n--\n\n"
    "Return the message calls of this communicator, ordered on a\n"
    "stream.\n\n"
    "A send reads the data that earlier work on the stream has\n"
    "written. Later work on the stream sees the received data. The\n"
    "device is not synchronized. stream: a wm.Stream, a stream of\n"
    "CuPy, Torch, Warp or Numba, any object with __cuda_stream__, or\n"
    "a stream's address as an int; wm.Stream(cuda_stream=0) is the\n"
    "default stream. Raises ValueError for a number that is no\n"
    "address, such as the ordinal of a device, and for the per-thread\n"
    "default stream, which differs between threads. While the stream\n"
    "is captured into a CUDA graph, messages and blocking collectives\n"
    "become part of the graph, and all other calls raise RuntimeError.");

#define X(name)                                                               \
    PyObject *wm_py_comm_call_##name(PyObject *self, PyObject *const *args,   \
                                     Py_ssize_t given, PyObject *keywords)    \
    {                                                                         \
        PyObject *result = wm_py_comm_##name(self, args, given, keywords);    \
        return result != NULL ? result : wm_py_channel_fail(self, false);     \
    }
WM_PY_MESSAGE_CALLS(X)
WM_PY_PROBE_CALLS(X)
#undef X

static PyMethodDef comm_methods[] = {
    WM_PY_MESSAGE_CALLS(WM_PY_CALL_ROW) WM_PY_PROBE_CALLS(WM_PY_CALL_ROW){
        "_attach", comm_attach, METH_O, comm_attach_doc},
    {"_revoke", comm_revoke, METH_NOARGS, comm_revoke_doc},
    {"on", wm_py_on_stream, METH_O, comm_on_doc},
    WM_PY_ROW("Barrier", wm_py_comm_Barrier, METH_NOARGS),
    WM_PY_ROW("_wait_for_all", wm_py_comm_wait_for_all, METH_O),
    WM_PY_ROW("_engine", wm_py_comm_engine, METH_FASTCALL),
    WM_PY_ROW("_transport", wm_py_comm_transport, METH_FASTCALL),
    {0},
};

PyDoc_STRVAR(comm_doc,
             "The calls that take GPU arrays, mixed into every communicator.");

static PyType_Slot comm_slots[] = {
    {Py_tp_doc, (void *)comm_doc},
    {Py_tp_methods, comm_methods},
    {0},
};

PyType_Spec wm_py_comm_spec = {
    .name = "warpmpi.CommMethods",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = comm_slots,
};
