// SPDX-License-Identifier: BSD-3-Clause
// The setting that refuses to stage GPU memory (comm/comm/require.h).
// warpmpi/_require.py has the function for users.
#include "comm/coll/run/coll_require.h"
#include "comm/comm/require.h"
#include "python/message/channel.h"
#include "python/request/prequest.h"

PyDoc_STRVAR(
    require_doc,
    "_require(comm, on, everywhere, wrong, /)\n--\n\n"
    "Set or take back the setting, on all ranks of a communicator of\n"
    "ours; collective. everywhere: for all communicators of this\n"
    "process. wrong: this rank's argument is wrong, and all raise\n"
    "ValueError; or None.");

static PyObject *
require(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *comm;
    const char *wrong;
    wm_channel_t channel;
    wm_error_t err;
    int on, everywhere, code = 0;
    if (!PyArg_ParseTuple(args, "Oppz:_require", &comm, &on, &everywhere,
                          &wrong)
        || wm_py_channel_get(comm, &channel) < 0)
        return NULL;
    if (wrong != NULL)
        code = wm_error_set(&err, WM_ERR_VALUE, 0, "%s", wrong);
    WM_PY_UNLOCKED(code = wm_coll_require_change(channel.comm, everywhere, on,
                                                 code, &err));
    return wm_py_none(code, &err);
}

PyDoc_STRVAR(
    requires_doc,
    "_requires(comm, /)\n--\n\n"
    "Return True if a communicator of ours refuses to stage, or that\n"
    "of a persistent request; None: if all of this process do.\n"
    "False for other communicators.");

static PyObject *requires(PyObject *Py_UNUSED(module), PyObject *comm)
{
    wm_channel_t channel;
    if (wm_require_is_everywhere() || comm == Py_None)
        return PyBool_FromLong(wm_require_is_everywhere());
    if (PyObject_TypeCheck(comm, wm_py_state->prequest_type))
        comm = ((wm_prequest_t *)comm)->comm; // borrowed
    if (wm_py_channel_get(comm, &channel) < 0) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(wm_require_is_on(channel.comm));
}

PyDoc_STRVAR(set_required_doc,
             "_set_required(on, /)\n--\n\n"
             "Set or take back the setting for all communicators, where no\n"
             "rank has a GPU.");

static PyObject *
set_required(PyObject *Py_UNUSED(module), PyObject *on)
{
    int given = PyObject_IsTrue(on);
    if (given < 0)
        return NULL;
    wm_require_set(NULL, given);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(follow_required_doc,
             "_follow_required(comm, other, /)\n--\n\n"
             "Give a communicator, which stands for another one of ours, the\n"
             "setting of the other; no-op for communicators of mpi4py's.");

static PyObject *
follow_required(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *comm, *other;
    wm_channel_t channel, its;
    if (!PyArg_ParseTuple(args, "OO:_follow_required", &comm, &other))
        return NULL;
    if (wm_py_channel_get(comm, &channel) < 0
        || wm_py_channel_get(other, &its) < 0)
        PyErr_Clear();
    else
        wm_require_set(channel.comm, wm_require_is_on(its.comm));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(staging_error_doc,
             "_staging_error(why, cure, /)\n--\n\n"
             "Return the StagingError of a call that would stage.");

static PyObject *
staging_error(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *why, *cure;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "ss:_staging_error", &why, &cure))
        return NULL;
    (void)wm_require_refuse(why, cure, &err);
    return PyObject_CallFunction(wm_py_state->staging_error, "s", err.text);
}

PyMethodDef wm_py_require_functions[] = {
    {"_require", require, METH_VARARGS, require_doc},
    {"_requires", requires, METH_O, requires_doc},
    {"_follow_required", follow_required, METH_VARARGS, follow_required_doc},
    {"_set_required", set_required, METH_O, set_required_doc},
    {"_staging_error", staging_error, METH_VARARGS, staging_error_doc},
    {0},
};
