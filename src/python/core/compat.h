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

#endif
