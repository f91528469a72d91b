// SPDX-License-Identifier: BSD-3-Clause
// The thresholds between algorithms of collectives, which users know as switch
// points. warpmpi/_points.py reads those of a file.
#include "comm/coll/direct/thresholds.h"
#include "python/core/module.h"
#include "python/device/py_device.h"

PyDoc_STRVAR(thresholds_doc,
             "_points(device, linked, ranks, /)\n--\n\n"
             "Return the switch points of this number of ranks on GPUs like\n"
             "`device`, with or without NVLink between them: {name: bytes}.");

static PyObject *
thresholds(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *found;
    wm_thresholds_t values;
    int device, linked, ranks;
    if (!PyArg_ParseTuple(args, "Opi:_points", &object, &linked, &ranks)
        || wm_py_cuda_device(object, "device", &device) < 0)
        return NULL;
    wm_thresholds_find(device, linked, ranks, &values);
    found = PyDict_New();
#define X(field, name, ...)                                                   \
    if (found != NULL) {                                                      \
        PyObject *value = PyLong_FromSize_t(values.field);                    \
        if (value == NULL || PyDict_SetItemString(found, name, value) < 0)    \
            Py_CLEAR(found);                                                  \
        Py_XDECREF(value);                                                    \
    }
    WM_THRESHOLDS(X)
#undef X
    return found;
}

PyDoc_STRVAR(
    set_thresholds_doc,
    "_set_points(rows, /)\n--\n\n"
    "Replace the switch points by those of a file. Each row is a\n"
    "tuple: the major number of the compute capability, 0 for any; whether\n"
    "NVLink joins the GPUs; the number of ranks, which is 2, up to 4\n"
    "or up to 64, 0 for any; bytes in the order of _points(). Calls\n"
    "that begin later use the first row that fits.");

static PyObject *
set_thresholds(PyObject *Py_UNUSED(module), PyObject *list)
{
    wm_thresholds_row_t rows[WM_THRESHOLDS_GIVEN];
    wm_error_t err;
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    if (count < 0)
        return PyErr_Format(PyExc_TypeError, "rows must be a list");
    for (Py_ssize_t i = 0; i < count && i < WM_THRESHOLDS_GIVEN; ++i) {
        wm_thresholds_row_t *row = &rows[i];
        int linked;
#define X(...) "n"
#define AT(field, ...) , (Py_ssize_t *)&row->thresholds.field
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ipi" WM_THRESHOLDS(X),
                              &row->major, &linked,
                              &row->ranks WM_THRESHOLDS(AT)))
            return NULL;
#undef AT
#undef X
        row->linked = linked;
    }
    return wm_py_none(wm_thresholds_set(rows, (size_t)count, &err), &err);
}

PyMethodDef wm_py_thresholds_functions[] = {
    {"_points", thresholds, METH_VARARGS, thresholds_doc},
    {"_set_points", set_thresholds, METH_O, set_thresholds_doc},
    {0},
};
