// SPDX-License-Identifier: BSD-3-Clause
// What Python sees of forked children, and of MPI that does not run.
#include "comm/engine/child.h"

#include "comm/engine/engine.h"
#include "python/core/module.h"

int
wm_py_check_running(void)
{
    wm_error_t err;
    if (wm_engine_check(&err) == 0)
        return 0;
    wm_py_raise(&err);
    return -1;
}

PyDoc_STRVAR(check_running_doc,
             "_check_running()\n--\n\n"
             "Raise RuntimeError where MPI does not run, and in a forked "
             "child: MPI itself\nends the program, or breaks its parent's.");

static PyObject *
check_running(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return wm_py_check_running() < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_check_running", check_running, METH_NOARGS, check_running_doc},
    {0},
};

int
wm_py_add_child(PyObject *module)
{
    static bool watched;
    wm_error_t err;
    if (!watched && wm_child_watch(&err) < 0) {
        wm_py_raise(&err);
        return -1;
    }
    watched = true;
    return PyModule_AddFunctions(module, functions);
}
