// SPDX-License-Identifier: BSD-3-Clause
// Arguments of calls that are made a million times: parsed fast. GIL held.
#ifndef WM_PYTHON_CORE_ARGUMENTS_H
#define WM_PYTHON_CORE_ARGUMENTS_H

#include "python/core/module.h"

// Arguments by position or keyword into `values` (borrowed, NULL where not
// given); the first `required` must be there. Much cheaper than
// PyArg_Parse for the calls that are made a million times.
int
wm_py_arguments(const char *function, const char *const *names, int count,
                int required, PyObject *const *args, Py_ssize_t given,
                PyObject *keywords, PyObject **values);

// Refuses None as what a message with that rank is in: as for mpi4py, it will
// do for MPI_PROC_NULL alone. 0, or -1 with an exception.
int
wm_py_argument_no_none(PyObject *object, const char *argument, int rank);

// An int argument, or what int() makes one of, but text: floats are truncated,
// as mpi4py does. `value` keeps its default where the object is NULL. 0, or -1
// with a TypeError, ValueError (not a number) or OverflowError.
int
wm_py_argument_int(PyObject *object, const char *argument, int *value);

#endif
