// SPDX-License-Identifier: BSD-3-Clause
// Exceptions: wm.CudaError, the exception of each C error, and MPI's error
// handlers, which are told of MPI's errors.
#include "comm/engine/optional_mpi.h"
#include "cuda/driver.h"
#include "python/core/mpi4py.h"

// An exception of ours with this attribute: no error handler was told of it.
#define UNTOLD "_untold"

// Raises an MPI code as mpi4py does, with the C text as a note.
static void
raise_mpi(const wm_error_t *err)
{
    PyObject *type = wm_py_state->mpi_exception, *done = NULL;
    int code = err->code == WM_ERR_TRUNCATE ? MPI_ERR_TRUNCATE : err->detail;
    PyObject *exception = PyObject_CallFunction(type, "i", code);
    if (exception != NULL
        && PyObject_HasAttrString(exception, "add_note")) { // Python 3.11
        done = PyObject_CallMethod(exception, "add_note", "s", err->text);
        if (done == NULL)
            Py_CLEAR(exception);
    }
    if (exception != NULL
        && PyObject_SetAttrString(exception, UNTOLD, Py_True) == 0)
        PyErr_SetObject(type, exception);
    Py_XDECREF(exception);
    Py_XDECREF(done);
}

static bool
ends_the_job(MPI_Errhandler handler)
{
#ifdef MPI_ERRORS_ABORT
    if (handler == MPI_ERRORS_ABORT)
        return true;
#endif
    return handler == MPI_ERRORS_ARE_FATAL;
}

// Prints an exception, since the job ends before Python could. GIL held.
static void
print_last_words(PyObject *exception)
{
    PyObject *notes = PyObject_GetAttrString(exception, "__notes__");
    PyObject *text = notes != NULL && PyList_Check(notes)
                             && PyList_GET_SIZE(notes) > 0
                         ? Py_NewRef(PyList_GET_ITEM(notes, 0))
                         : PyObject_Str(exception);
    if (text != NULL)
        PySys_FormatStderr("warpmpi: %S\n", text);
    Py_XDECREF(notes);
    Py_XDECREF(text);
    PyErr_Clear();
}

bool
wm_py_mpi_handler_hears(MPI_Errhandler *handler, PyObject *exception,
                        int *code)
{
    PyObject *given = PyObject_CallMethod(exception, "Get_error_code", NULL);
    *code = given != NULL ? (int)PyLong_AsLong(given) : MPI_ERR_OTHER;
    Py_XDECREF(given);
    PyErr_Clear();
    if (ends_the_job(*handler))
        print_last_words(exception);
    bool returns = *handler == MPI_ERRORS_RETURN;
    MPI_Errhandler_free(handler);
    return !returns;
}

void
wm_py_mpi_call_handler(MPI_Comm comm, bool of_mpi)
{
    MPI_Errhandler handler;
    int code;
    if (!PyErr_ExceptionMatches(wm_py_state->mpi_exception))
        return;
    PyObject *error = PyErr_GetRaisedException();
    bool untold = PyObject_HasAttrString(error, UNTOLD);
    if (untold && PyObject_SetAttrString(error, UNTOLD, NULL) < 0)
        PyErr_Clear();
    if ((untold || of_mpi) && wm_py_check_running() == 0
        && MPI_Comm_get_errhandler(comm, &handler) == MPI_SUCCESS
        && wm_py_mpi_handler_hears(&handler, error, &code))
        WM_PY_UNLOCKED(MPI_Comm_call_errhandler(comm, code));
    PyErr_SetRaisedException(error);
}

// Raises a CudaError or a subclass; `code` and `name` stay None if the driver
// gave no result.
static void
raise_cuda(PyObject *type, const wm_error_t *err)
{
    PyObject *code = NULL, *name = NULL;
    PyObject *exception = PyObject_CallFunction(type, "s", err->text);
    if (exception == NULL)
        goto done;
    if (err->detail != 0) {
        code = PyLong_FromLong(err->detail);
        name = PyUnicode_FromString(wm_cu_error_name(err->detail));
        if (code == NULL || name == NULL
            || PyObject_SetAttrString(exception, "code", code) < 0
            || PyObject_SetAttrString(exception, "name", name) < 0)
            goto done;
    }
    PyErr_SetObject(type, exception);
done:
    Py_XDECREF(exception);
    Py_XDECREF(code);
    Py_XDECREF(name);
}

static void
raise_system(const wm_error_t *err)
{
    PyObject *args = Py_BuildValue("is", err->detail, err->text);
    if (args != NULL) {
        PyErr_SetObject(PyExc_OSError, args);
        Py_DECREF(args);
    }
}

PyObject *
wm_py_raise(const wm_error_t *err)
{
    switch ((wm_code_t)err->code) {
    case WM_ERR_CUDA:
    case WM_ERR_DRIVER:
        raise_cuda(wm_py_state->cuda_error, err);
        break;
    case WM_ERR_MEMORY:
        if (err->detail == CUDA_ERROR_OUT_OF_MEMORY)
            raise_cuda(wm_py_state->memory_error, err);
        else
            PyErr_SetString(PyExc_MemoryError, err->text);
        break;
    case WM_ERR_VALUE:
        PyErr_SetString(PyExc_ValueError, err->text);
        break;
    case WM_ERR_TYPE:
        PyErr_SetString(PyExc_TypeError, err->text);
        break;
    case WM_ERR_MPI:
    case WM_ERR_TRUNCATE:
        raise_mpi(err);
        break;
    case WM_ERR_SYSTEM:
        raise_system(err);
        break;
    case WM_ERR_STATE:
        PyErr_SetString(PyExc_RuntimeError, err->text);
        break;
    case WM_ERR_STAGING:
        PyErr_SetString(wm_py_state->staging_error, err->text);
        break;
    case WM_ERR_PYTHON:
        break;
    case WM_OK:
    default:
        PyErr_Format(PyExc_SystemError, "warpmpi: no error to raise (%d)",
                     err->code);
    }
    return NULL;
}

int
wm_py_result(int code, const wm_error_t *err)
{
    if (code >= 0)
        return 0;
    wm_py_raise(err);
    return -1;
}

PyObject *
wm_py_none(int code, const wm_error_t *err)
{
    return code < 0 ? wm_py_raise(err) : Py_NewRef(Py_None);
}

int
wm_py_fail(PyObject *type, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyErr_FormatV(type, format, args);
    va_end(args);
    return -1;
}

int
wm_py_raise_of(const char *argument, wm_error_t *err)
{
    (void)wm_error_context(err, "%s", argument);
    wm_py_raise(err);
    return -1;
}

int
wm_py_mpi_fail(int error_class, const char *format, ...)
{
    wm_error_t err;
    char text[sizeof err.text];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return wm_py_result(
        wm_error_set(&err, WM_ERR_MPI, error_class, "%s", text), &err);
}

int
wm_py_describe(int code, wm_error_t *err)
{
    PyObject *raised = PyErr_GetRaisedException();
    PyObject *text = PyObject_Str(raised);
    const char *told = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    (void)wm_error_set(err, code, 0, "%s",
                       told != NULL ? told : Py_TYPE(raised)->tp_name);
    Py_XDECREF(text);
    PyErr_SetRaisedException(raised);
    return code;
}

void
wm_py_warn_of_loss(PyObject *object, const char *text)
{
    PyObject *raised = PyErr_GetRaisedException();
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text, 1) < 0)
        PyErr_WriteUnraisable((PyObject *)Py_TYPE(object));
    PyErr_SetRaisedException(raised);
}

PyDoc_STRVAR(
    cuda_error_doc,
    "A call of the CUDA driver failed, or no usable driver is there.\n\n"
    "Attributes:\n"
    "    code: the driver's result (a CUresult) as an int, or None.\n"
    "    name: its name, such as \"CUDA_ERROR_INVALID_VALUE\", or None.");

PyDoc_STRVAR(
    memory_error_doc,
    "A device does not have enough memory, or the driver has run out\n"
    "of memory.\n\n"
    "warpmpi gives back all memory that it keeps for reuse before it\n"
    "raises this error. The text says how many bytes were requested,\n"
    "and how many are free.");

PyDoc_STRVAR(
    staging_error_doc,
    "GPU memory would be staged through host memory, which\n"
    "wm.require(\"gpu\") or WARPMPI_REQUIRE=gpu forbids.\n\n"
    "The text says why, and what to do. Both ends of a message raise\n"
    "it, and all ranks of a collective. The contents of the receive\n"
    "buffers are not defined. The next calls are not affected.");

int
wm_py_add_exceptions(PyObject *module)
{
    wm_state_t *state = wm_py_state;
    PyObject *bases = NULL;
    PyObject *attributes = Py_BuildValue("{s:O,s:O}", "code", Py_None, "name",
                                         Py_None);
    int status = -1;
    if (attributes == NULL)
        goto done;
    state->cuda_error = PyErr_NewExceptionWithDoc(
        "warpmpi.CudaError", cuda_error_doc, PyExc_RuntimeError, attributes);
    if (state->cuda_error == NULL)
        goto done;
    bases = PyTuple_Pack(2, state->cuda_error, PyExc_MemoryError);
    if (bases == NULL)
        goto done;
    state->memory_error = PyErr_NewExceptionWithDoc(
        "warpmpi.OutOfMemoryError", memory_error_doc, bases, NULL);
    if (state->memory_error == NULL
        || (state->staging_error = PyErr_NewExceptionWithDoc(
                "warpmpi.StagingError", staging_error_doc, PyExc_RuntimeError,
                NULL))
               == NULL
        || PyModule_AddObjectRef(module, "StagingError", state->staging_error)
               < 0
        || PyModule_AddObjectRef(module, "CudaError", state->cuda_error) < 0
        || PyModule_AddObjectRef(module, "OutOfMemoryError",
                                 state->memory_error)
               < 0)
        goto done;
    status = 0;
done:
    Py_XDECREF(attributes);
    Py_XDECREF(bases);
    return status;
}
