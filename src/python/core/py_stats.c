// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/node/peer_stats.h"
#include "python/core/module.h"

PyDoc_STRVAR(stats_doc, "_stats($module, /)\n--\n\n"
                        "Return the counters as a dict of ints.");

static PyObject *
stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *result = PyDict_New();
    for (int i = 0; i < WM_STATS && result != NULL; ++i) {
        PyObject *value = PyLong_FromLongLong(wm_stat_get(i));
        if (value == NULL
            || PyDict_SetItemString(result, wm_stat_name(i), value) < 0)
            Py_CLEAR(result);
        Py_XDECREF(value);
    }
    return result;
}

PyDoc_STRVAR(
    reset_stats_doc,
    "reset_stats($module, /)\n--\n\n"
    "Set the counters of stats() to 0, except the counters of what is\n"
    "open now.");

static PyObject *
reset_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    wm_stat_reset();
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_lock();
    wm_peer_stats_reset();
    wm_engine_unlock();
    Py_END_ALLOW_THREADS;
    return Py_NewRef(Py_None);
}

PyMethodDef wm_py_stats_functions[] = {
    {"_stats", stats, METH_NOARGS, stats_doc},
    {"reset_stats", reset_stats, METH_NOARGS, reset_stats_doc},
    {0},
};
