// SPDX-License-Identifier: BSD-3-Clause
// What Python sees of forked children.
#include "comm/child.h"

#include "python/module.h"

int
wm_python_refuse_child(void)
{
    wm_error_t err;
    if (wm_child_refuse(&err) == 0)
        return 0;
    wm_raise(&err);
    return -1;
}

PyDoc_STRVAR(refuse_child_doc,
             "_refuse_child()\n--\n\n"
             "Raise RuntimeError in a forked child, which must not use MPI.");

static PyObject *
refuse_child(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return wm_python_refuse_child() < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_refuse_child", refuse_child, METH_NOARGS, refuse_child_doc},
    {0},
};

int
wm_python_add_child(PyObject *module)
{
    static bool watched;
    wm_error_t err;
    if (!watched && wm_child_watch(&err) < 0) {
        wm_raise(&err);
        return -1;
    }
    watched = true;
    return PyModule_AddFunctions(module, functions);
}
