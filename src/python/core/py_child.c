// SPDX-License-Identifier: BSD-3-Clause
// Forked children, MPI that does not run, and the end of the program, as
// Python sees them.
#include "comm/engine/child.h"

#include <stdio.h>

#include "comm/diagnostics/fault.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/watchdog.h"
#include "comm/engine/engine.h"
#include "comm/node/node.h"
#include "python/core/module.h"

int
wm_py_check_running(void)
{
    wm_error_t err;
    return wm_py_result(wm_engine_check(&err), &err);
}

// Comes before the exit function of mpi4py, whose MPI_Finalize would never
// return in a child.
static void
end_child(void)
{
    if (wm_is_child())
        wm_child_end();
}

int
wm_py_watch_children(void)
{
    static bool watched; // the import may be repeated
    wm_error_t err;
    if (!watched
        && (wm_py_result(wm_child_watch(&err), &err) < 0
            || Py_AtExit(end_child) < 0))
        return -1;
    watched = true;
    return 0;
}

PyDoc_STRVAR(child_status_doc,
             "_child_status(status, /)\n--\n\n"
             "Set the exit status of this process if it is a forked child.");

static PyObject *
child_status(PyObject *Py_UNUSED(module), PyObject *object)
{
    long status = PyLong_AsLong(object);
    if (status == -1 && PyErr_Occurred())
        return NULL;
    wm_child_set_status((int)(status & 255));
    Py_RETURN_NONE;
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

PyDoc_STRVAR(raised_doc,
             "_raised(text, /)\n--\n\n"
             "Tell the other ranks of the exception that ends this program:\n"
             "one line. If MPI_Finalize waits long, a thread reports it.");

static void
tell_raised(const char *text)
{
    char call[240];
    if (wm_engine_check_world(NULL) < 0)
        return; // there is no MPI_Finalize to come
    wm_engine_lock();
    wm_node_raised(text);
    (void)!wm_hang_configure(NULL); // a wm.Comm reports the error
    wm_engine_unlock();
    snprintf(call, sizeof call, "this rank raised %.180s; MPI_Finalize", text);
    (void)wm_watchdog_begin(
        MPI_COMM_WORLD, wm_hang_limit(), call,
        "do they wait for this rank? (`python -m warpmpi` and `python -m "
        "mpi4py` end all ranks if one raises)");
}

static PyObject *
raised(PyObject *Py_UNUSED(module), PyObject *object)
{
    const char *text = PyUnicode_AsUTF8(object);
    if (text == NULL)
        return NULL;
    WM_PY_UNLOCKED(tell_raised(text));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(watch_faults_doc,
             "_watch_faults(watch, /)\n--\n\n"
             "Install the handler that explains a fault at a GPU's address,\n"
             "or the one from before. Return False if a later handler keeps\n"
             "it from going.");

static PyObject *
watch_faults(PyObject *Py_UNUSED(module), PyObject *watch)
{
    int wanted = PyObject_IsTrue(watch);
    if (wanted > 0)
        wm_fault_watch();
    return wanted < 0 ? NULL : PyBool_FromLong(wanted || wm_fault_end());
}

PyMethodDef wm_py_child_functions[] = {
    {"_child_status", child_status, METH_O, child_status_doc},
    {"_watch_faults", watch_faults, METH_O, watch_faults_doc},
    {"_raised", raised, METH_O, raised_doc},
    {"_count_session", count_session, METH_O, count_session_doc},
    {"_check_running", check_running, METH_NOARGS, check_running_doc},
    {0},
};
