// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/attempt.h"

#include "comm/engine/posted.h"
#include "python/view/view.h"

// MPI has made the call of this thread's attempt by Python code.
static _Thread_local bool made;

bool
wm_py_attempt_is_over(void)
{
    return PyErr_ExceptionMatches(wm_py_state->mpi_exception)
           || wm_py_drop_refusal() < 0;
}

bool
wm_py_attempt_begin(void)
{
    bool outer = made;
    made = false;
    return outer;
}

bool
wm_py_attempt_end(bool outer)
{
    bool ended = made;
    made = outer;
    return ended;
}

// Returns true if an exception came before MPI's function, or says that MPI
// has refused the arguments. Sets none.
static bool
refuses(PyObject *exception)
{
    if (!PyErr_GivenExceptionMatches(exception, wm_py_state->mpi_exception))
        return !PyErr_GivenExceptionMatches(exception,
                                            wm_py_state->cuda_error);
    PyObject *given = PyObject_CallMethod(exception, "Get_error_class", NULL);
    bool refused = given != NULL && wm_mpi_refuses((int)PyLong_AsLong(given));
    Py_XDECREF(given);
    PyErr_Clear();
    return refused;
}

bool
wm_py_attempt_is_made(const PyObject *result)
{
    if (result != NULL)
        return true;
    PyObject *error = PyErr_GetRaisedException();
    bool refused = refuses(error);
    PyErr_SetRaisedException(error);
    return !refused;
}

static PyObject *
attempt(PyObject *method, PyObject *const *args, Py_ssize_t given,
        PyObject *names)
{
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)given, names);
    made = wm_py_attempt_is_made(result);
    return result;
}

static PyMethodDef attempt_method = {"attempt",
                                     (PyCFunction)(void (*)(void))attempt,
                                     METH_FASTCALL | METH_KEYWORDS, NULL};

PyDoc_STRVAR(attempting_doc,
             "_attempting(method, /)\n--\n\n"
             "Return a function that calls a method of mpi4py's, and notes\n"
             "if MPI has made the call.");

static PyObject *
attempting(PyObject *Py_UNUSED(module), PyObject *method)
{
    return PyCFunction_New(&attempt_method, method);
}

PyDoc_STRVAR(refuses_doc,
             "_refuses(error, /)\n--\n\n"
             "Return True if an exception says that a call was refused, so\n"
             "that it has not happened.");

static PyObject *
is_refusal(PyObject *Py_UNUSED(module), PyObject *error)
{
    return PyBool_FromLong(refuses(error));
}

PyMethodDef wm_py_attempt_functions[] = {
    {"_refuses", is_refusal, METH_O, refuses_doc},
    {"_attempting", attempting, METH_O, attempting_doc},
    {0},
};
