// SPDX-License-Identifier: BSD-3-Clause
// Forked children, and MPI that does not run, as Python sees them.
#include "comm/engine/child.h"

#include "comm/engine/engine.h"
#include "python/core/module.h"

int
wm_py_check_running(void)
{
    wm_error_t err;
    return wm_py_result(wm_engine_check(&err), &err);
}

int
wm_py_watch_children(void)
{
    static bool watched; // the import may be repeated
    wm_error_t err;
    if (!watched && wm_py_result(wm_child_watch(&err), &err) < 0)
        return -1;
    watched = true;
    return 0;
}

PyDoc_STRVAR(
    check_running_doc,
    "_check_running()\n--\n\n"
    "Raise RuntimeError if MPI is not running, or in a forked child,\n"
    "in which MPI itself would end the program or break the parent's\n"
    "MPI.");

static PyObject *
check_running(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return wm_py_check_running() < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(count_session_doc,
             "_count_session(change, /)\n--\n\n"
             "Count a session of MPI that was begun (1) or finalized (-1).");

static PyObject *
count_session(PyObject *Py_UNUSED(module), PyObject *change)
{
    long value = PyLong_AsLong(change);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    wm_engine_count_session((int)value);
    Py_RETURN_NONE;
}

PyMethodDef wm_py_child_functions[] = {
    {"_count_session", count_session, METH_O, count_session_doc},
    {"_check_running", check_running, METH_NOARGS, check_running_doc},
    {0},
};
