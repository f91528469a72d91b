// SPDX-License-Identifier: BSD-3-Clause
// Barrier, after which GPU memory freed before is available.
#include "comm/coll/run/coll.h"
#include "comm/coll/stream/symm.h"
#include "comm/diagnostics/hang.h"
#include "python/comm/calls.h"
#include "python/message/channel.h"

const char wm_py_comm_Barrier_doc[] = PyDoc_STR(
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
    wm_hang_call(name, true);
    WM_PY_UNLOCKED(code = wm_coll_barrier(channel.comm->whole, &err));
    wm_waiting_call.name = NULL; // may be the caller's
    if (code == 0)               // a call on a stream may have failed later
        code = wm_symm_find_failure(channel.comm->symm, &err);
    PyObject *result = wm_py_none(code, &err);
    return result != NULL ? result : wm_py_channel_fail(self, false);
}

PyObject *
wm_py_comm_Barrier(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return barrier_wait(self, wm_call_name(WM_COLL_BARRIER));
}

const char wm_py_comm_wait_for_all_doc[] = PyDoc_STR(
    "_wait_for_all($self, name, /)\n--\n\n"
    "Wait for all ranks, before the collective of that name.");

PyObject *
wm_py_comm_wait_for_all(PyObject *self, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    return text != NULL ? barrier_wait(self, text) : NULL;
}
