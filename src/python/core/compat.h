// SPDX-License-Identifier: BSD-3-Clause
// Functions of Python's public interface that the oldest supported version
// lacks, under their names in later versions.
#ifndef WM_PYTHON_CORE_COMPAT_H
#define WM_PYTHON_CORE_COMPAT_H

#include <Python.h>

#if PY_VERSION_HEX < 0x030D0000

// Returns 1 with a new reference; 0 and NULL, without an exception, if there
// is no such attribute; -1 and NULL with any other exception. GIL held.
static inline int
PyObject_GetOptionalAttr(PyObject *object, PyObject *name, PyObject **value)
{
    *value = PyObject_GetAttr(object, name);
    if (*value != NULL)
        return 1;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    return 0;
}

#endif

#if PY_VERSION_HEX < 0x030C0000

// Returns the exception that is set, and clears it; NULL if none is set.
static inline PyObject *
PyErr_GetRaisedException(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

// Sets an exception in place of the present one, and takes over the reference;
// NULL: sets none.
static inline void
PyErr_SetRaisedException(PyObject *error)
{
    PyObject *type = Py_XNewRef(error != NULL ? (PyObject *)Py_TYPE(error)
                                              : NULL);
    PyErr_Restore(type, error,
                  error != NULL ? PyException_GetTraceback(error) : NULL);
}

#endif

#endif
