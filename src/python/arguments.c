// SPDX-License-Identifier: BSD-3-Clause
#include "python/channel.h"

int
wm_arguments(const char *function, const char *const *names, int count,
             int required, PyObject *const *args, Py_ssize_t given,
             PyObject *keywords, PyObject **values)
{
    if (given > count) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d arguments (%zd given)", function,
                     count, given);
        return -1;
    }
    for (int i = 0; i < count; ++i)
        values[i] = i < given ? args[i] : NULL;
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
        PyObject *name = PyTuple_GET_ITEM(keywords, k);
        int i = 0;
        while (i < count
               && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            ++i;
        if (i == count || values[i] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         i == count
                             ? "%s() got an unexpected keyword argument %R"
                             : "%s() got %R twice",
                         function, name);
            return -1;
        }
        values[i] = args[given + k];
    }
    for (int i = 0; i < required; ++i)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'",
                         function, names[i]);
            return -1;
        }
    return 0;
}

int
wm_argument_no_none(PyObject *object, const char *argument, int rank)
{
    if (object != Py_None || rank == MPI_PROC_NULL)
        return 0;
    PyErr_Format(PyExc_TypeError,
                 "%s: None is no array: give one, or [None, 0, datatype] for "
                 "an empty message",
                 argument);
    return -1;
}

int
wm_argument_int(PyObject *object, const char *argument, int *value)
{
    if (object == NULL)
        return 0;
    long number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s: expected an int, not %.100s",
                         argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    if (number < INT_MIN || number > INT_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s=%ld does not fit an int",
                     argument, number);
        return -1;
    }
    *value = (int)number;
    return 0;
}
