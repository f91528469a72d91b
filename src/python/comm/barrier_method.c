// SPDX-License-Identifier: BSD-3-Clause
// Barrier, after which GPU memory freed before is available: a mixin below
// CommMethods.
#include "comm/coll/run/coll.h"
#include "comm/coll/stream/symm.h"
#include "comm/diagnostics/hang.h"
#include "python/message/channel.h"

PyDoc_STRVAR(
    comm_Barrier_doc,
    "Barrier($self, /)\n--\n\n"
    "Wait for all ranks. GPU memory that a rank has freed before the\n"
    "call can be allocated after it.");

// Waits for all ranks, in the call of that name.
static PyObject *
barrier_wait(PyObject *self, const char *name)
{
    wm_channel_t channel;
    wm_error_t err;
    int code;
    if (wm_py_channel_get(self, &channel) < 0)
        return wm_py_channel_fail(self, false);
    wm_waiting_call = (wm_waiting_call_t){
        .name = name,
        .collective = true,
        .type = MPI_DATATYPE_NULL,
    };
    WM_PY_UNLOCKED(code = wm_coll_barrier(channel.comm->whole, &err));
    wm_waiting_call.name = NULL; // may be the caller's
    if (code == 0)               // a call on a stream may have failed later
        code = wm_symm_find_failure(channel.comm->symm, &err);
    PyObject *result = wm_py_none(code, &err);
    return result != NULL ? result : wm_py_channel_fail(self, false);
}

static PyObject *
comm_Barrier(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return barrier_wait(self, wm_call_name(WM_COLL_BARRIER));
}

PyDoc_STRVAR(comm_wait_for_all_doc,
             "_wait_for_all($self, name, /)\n--\n\n"
             "Wait for all ranks, before the collective of that name.");

static PyObject *
comm_wait_for_all(PyObject *self, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    return text != NULL ? barrier_wait(self, text) : NULL;
}

static PyMethodDef methods[] = {
    {"Barrier", comm_Barrier, METH_NOARGS, comm_Barrier_doc},
    {"_wait_for_all", comm_wait_for_all, METH_O, comm_wait_for_all_doc},
    {0},
};

PyDoc_STRVAR(collectives_doc, "The barrier of communicators.");

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
