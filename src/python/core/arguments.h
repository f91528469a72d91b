// SPDX-License-Identifier: BSD-3-Clause
// Fast parsing of arguments, for calls that programs make very often. GIL
// held.
#ifndef WM_PYTHON_CORE_ARGUMENTS_H
#define WM_PYTHON_CORE_ARGUMENTS_H

#include "python/core/module.h"

// Parses arguments by position or keyword into `values` (borrowed, NULL if not
// given); the first `required` must be given. Much faster than PyArg_Parse.
// Returns 0, or -1 with an exception.
int
wm_py_arguments(const char *function, const char *const *names, int count,
                int required, PyObject *const *args, Py_ssize_t given,
                PyObject *keywords, PyObject **values);

// Calls with another object in front of the arguments.
PyObject *
wm_py_call_with(PyObject *call, PyObject *first, PyObject *const *args,
                Py_ssize_t given, PyObject *keywords);

// Parses an int argument, or an object that int() converts, except text:
// floats are truncated, as mpi4py does. `value` keeps its default if the
// object is NULL. Returns 0, or -1 with a TypeError, ValueError (not a number)
// or OverflowError.
int
wm_py_argument_int(PyObject *object, const char *argument, int *value);

#endif
