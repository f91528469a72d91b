// SPDX-License-Identifier: BSD-3-Clause
// Functions for install(), and for types that are partly written in Python.
// They do what Python refuses, as mpi4py's types are immutable, and, before
// MPI runs, what mpi4py cannot do, as it asks MPI about each handle.
#include "python/core/mpi4py.h"

// `in`, by the method in the type's dictionary: Python looks at the slot.
static int
patched_contains(PyObject *object, PyObject *item)
{
    PyObject *found = PyObject_CallMethod(object, "__contains__", "O", item);
    int answer = found != NULL ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return answer;
}

PyDoc_STRVAR(
    patch_doc,
    "_patch(type, name, value, /)\n--\n\n"
    "Set an attribute of a type of mpi4py; return the former value.\n\n"
    "A classmethod or staticmethod is returned as its descriptor. Of the\n"
    "methods that operators call, __contains__ alone takes effect.\n"
    "Raises AttributeError if the type itself has no such attribute.");

static PyObject *
patch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    PyObject *name, *value;
    if (!PyArg_ParseTuple(args, "O!UO:_patch", &PyType_Type, &type, &name,
                          &value))
        return NULL;
    // For types that are not Python's own, the dictionary is in the struct.
    PyObject *former = PyDict_GetItemWithError(type->tp_dict, name);
    if (former == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_AttributeError, "%.200s has no %R of its own",
                         type->tp_name, name);
        return NULL;
    }
    Py_INCREF(former);
    int code = PyDict_SetItem(type->tp_dict, name, value);
    PyType_Modified(type);
    if (code < 0)
        Py_CLEAR(former);
    else if (PyUnicode_CompareWithASCIIString(name, "__contains__") == 0)
        type->tp_as_sequence->sq_contains = patched_contains;
    return former;
}

PyDoc_STRVAR(share_handle_doc,
             "_share_handle(ours, theirs, /)\n--\n\n"
             "Give a communicator the handle of another; MPI need not run.");

static PyObject *
share_handle(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ours, *theirs;
    MPI_Comm handle;
    if (!PyArg_ParseTuple(args, "OO:_share_handle", &ours, &theirs)
        || wm_py_mpi_comm(theirs, "theirs", &handle) < 0
        || wm_py_mpi_set_comm(ours, "ours", handle) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    seal_doc,
    "_seal(type, /)\n--\n\n"
    "Make a type of the core immutable, after its attributes are set.");

static PyObject *
seal(PyObject *Py_UNUSED(module), PyObject *given)
{
    if (!PyType_Check(given))
        return PyErr_Format(PyExc_TypeError, "%R is no type", given);
    PyTypeObject *type = (PyTypeObject *)given;
    type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
    PyType_Modified(type);
    Py_RETURN_NONE;
}

PyMethodDef wm_py_patch_functions[] = {
    {"_share_handle", share_handle, METH_VARARGS, share_handle_doc},
    {"_seal", seal, METH_O, seal_doc},
    {"_patch", patch, METH_VARARGS, patch_doc},
    {0},
};
