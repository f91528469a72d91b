// SPDX-License-Identifier: BSD-3-Clause
#include "python/core/arguments.h"

#include <limits.h>
#include <mpi.h>
#include <string.h>

#include "python/core/module.h"

#define FEW 15 // arguments that need no allocation

int
wm_py_arguments(const char *function, const char *const *names, int count,
                int required, PyObject *const *args, Py_ssize_t given,
                PyObject *keywords, PyObject **values)
{
    if (given > count)
        return wm_py_fail(PyExc_TypeError,
                          "%s() takes at most %d arguments (%zd given)",
                          function, count, given);
    for (int i = 0; i < count; ++i)
        values[i] = i < given ? args[i] : NULL;
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
        PyObject *name = PyTuple_GET_ITEM(keywords, k);
        int i = 0;
        while (i < count
               && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            ++i;
        if (i == count || values[i] != NULL)
            return wm_py_fail(
                PyExc_TypeError,
                i == count ? "%s() got an unexpected keyword argument %R"
                           : "%s() got multiple values for argument %R",
                function, name);
        values[i] = args[given + k];
    }
    for (int i = 0; i < required; ++i)
        if (values[i] == NULL)
            return wm_py_fail(PyExc_TypeError,
                              "%s() missing required argument '%s' (pos %d)",
                              function, names[i], i + 1);
    return 0;
}

PyObject *
wm_py_call_with(PyObject *call, PyObject *first, PyObject *const *args,
                Py_ssize_t given, PyObject *keywords)
{
    PyObject *few[FEW + 1], **words = few;
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    size_t count = (size_t)(given + named);
    if (count > FEW && (words = PyMem_New(PyObject *, count + 1)) == NULL)
        return PyErr_NoMemory();
    words[0] = first;
    if (count > 0)
        memcpy(words + 1, args, count * sizeof *words);
    PyObject *result = PyObject_Vectorcall(call, words, (size_t)given + 1,
                                           keywords);
    if (words != few)
        PyMem_Free(words);
    return result;
}

// Returns an object that Python's int() converts, except text, as a new int.
// Floats are truncated, as mpi4py does.
static PyObject *
as_int(PyObject *object, const char *argument)
{
    const PyNumberMethods *methods = Py_TYPE(object)->tp_as_number;
    if (PyLong_Check(object))
        return Py_NewRef(object);
    if (methods != NULL
        && (methods->nb_int != NULL || methods->nb_index != NULL)) {
        PyObject *number = PyNumber_Long(object);
        if (number != NULL
            || (!PyErr_ExceptionMatches(PyExc_TypeError)
                && Py_TYPE(object) != wm_py_state->array_type))
            return number;
    }
    return PyErr_Format(PyExc_TypeError, "%s: expected an int, not %.100s",
                        argument, Py_TYPE(object)->tp_name);
}

int
wm_py_argument_int(PyObject *object, const char *argument, int *value)
{
    int overflow;
    if (object == NULL)
        return 0;
    PyObject *whole = as_int(object, argument);
    if (whole == NULL)
        return -1;
    long number = PyLong_AsLongAndOverflow(whole, &overflow);
    if (overflow != 0 || number < INT_MIN || number > INT_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s=%.50S does not fit an int",
                     argument, whole);
        Py_DECREF(whole);
        return -1;
    }
    Py_DECREF(whole);
    *value = (int)number;
    return 0;
}
