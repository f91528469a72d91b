// SPDX-License-Identifier: BSD-3-Clause
#include "python/core/module.h"

#include <errno.h>

#include "cuda/driver.h"
#include "cuda/memory.h"

#ifndef WM_VERSION
#define WM_VERSION "0+unknown"
#endif

// Static, not module state: there is one interpreter, and C errors are turned
// into exceptions where no module is at hand. Never cleared, since objects
// that outlive the module at shutdown still look into it.
static wm_state_t the_state;
static bool executed;

wm_state_t *
wm_py_state(void)
{
    return &the_state;
}

// An MPI code as mpi4py raises it; the C text goes along as a note.
static void
raise_mpi(const wm_error_t *err)
{
    PyObject *mpi = NULL, *code = NULL, *exception = NULL, *done = NULL;
    mpi = PyImport_ImportModule("mpi4py.MPI");
    if (mpi == NULL) {
        goto done;
    }
    if (the_state.mpi_exception == NULL) {
        the_state.mpi_exception = PyObject_GetAttrString(mpi, "Exception");
        if (the_state.mpi_exception == NULL) {
            goto done;
        }
    }
    code = err->code == WM_ERR_TRUNCATE
               ? PyObject_GetAttrString(mpi, "ERR_TRUNCATE")
               : PyLong_FromLong(err->detail);
    if (code == NULL) {
        goto done;
    }
    exception = PyObject_CallOneArg(the_state.mpi_exception, code);
    if (exception == NULL) {
        goto done;
    }
    if (PyObject_HasAttrString(exception, "add_note")) { // Python 3.11
        done = PyObject_CallMethod(exception, "add_note", "s", err->text);
        if (done == NULL) {
            goto done;
        }
    }
    PyErr_SetObject(the_state.mpi_exception, exception);
done:
    Py_XDECREF(mpi);
    Py_XDECREF(code);
    Py_XDECREF(exception);
    Py_XDECREF(done);
}

// A CudaError or a subclass; `code` and `name` stay None where the driver
// gave no result.
static void
raise_cuda(PyObject *type, const wm_error_t *err)
{
    PyObject *code = NULL, *name = NULL;
    PyObject *exception = PyObject_CallFunction(type, "s", err->text);
    if (exception == NULL) {
        goto done;
    }
    if (err->detail != 0) {
        code = PyLong_FromLong(err->detail);
        name = PyUnicode_FromString(wm_cu_error_name(err->detail));
        if (code == NULL || name == NULL
            || PyObject_SetAttrString(exception, "code", code) < 0
            || PyObject_SetAttrString(exception, "name", name) < 0) {
            goto done;
        }
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
        raise_cuda(the_state.cuda_error, err);
        break;
    case WM_ERR_MEMORY:
        if (err->detail == CUDA_ERROR_OUT_OF_MEMORY) {
            raise_cuda(the_state.memory_error, err);
        }
        else {
            PyErr_SetString(PyExc_MemoryError, err->text);
        }
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
    case WM_ERR_PYTHON:
        break;
    case WM_OK:
    default:
        PyErr_Format(PyExc_SystemError, "warpmpi: no error to raise (%d)",
                     err->code);
    }
    return NULL;
}

PyDoc_STRVAR(
    cuda_error_doc,
    "A call of the CUDA driver failed, or no usable driver is there.\n"
    "\n"
    "Attributes:\n"
    "    code: the driver's result (a CUresult) as an int, or None.\n"
    "    name: its name, such as \"CUDA_ERROR_INVALID_VALUE\", or None.");

PyDoc_STRVAR(
    memory_error_doc,
    "A device has not enough memory, or the driver ran out of it.\n"
    "\n"
    "Raised after all that warpmpi keeps for reuse was given back. The text\n"
    "tells what was asked for and what is free, in bytes.");

static int
add_exceptions(PyObject *module)
{
    PyObject *bases = NULL;
    PyObject *attributes = Py_BuildValue("{s:O,s:O}", "code", Py_None, "name",
                                         Py_None);
    int status = -1;
    if (attributes == NULL) {
        goto done;
    }
    the_state.cuda_error = PyErr_NewExceptionWithDoc(
        "warpmpi.CudaError", cuda_error_doc, PyExc_RuntimeError, attributes);
    if (the_state.cuda_error == NULL) {
        goto done;
    }
    bases = PyTuple_Pack(2, the_state.cuda_error, PyExc_MemoryError);
    if (bases == NULL) {
        goto done;
    }
    the_state.memory_error = PyErr_NewExceptionWithDoc(
        "warpmpi.OutOfMemoryError", memory_error_doc, bases, NULL);
    if (the_state.memory_error == NULL
        || PyModule_AddObjectRef(module, "CudaError", the_state.cuda_error) < 0
        || PyModule_AddObjectRef(module, "OutOfMemoryError",
                                 the_state.memory_error)
               < 0) {
        goto done;
    }
    status = 0;
done:
    Py_XDECREF(attributes);
    Py_XDECREF(bases);
    return status;
}

PyDoc_STRVAR(
    memory_stats_doc,
    "_memory_stats()\n"
    "--\n"
    "\n"
    "Memory that warpmpi has taken in this process, as a dict of ints: bytes "
    "of\n"
    "device and of pinned host memory, how many of them are in use, how many\n"
    "blocks that are, and how often the driver's allocators were called.");

static PyObject *
memory_stats(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    wm_memory_stats_t s;
    wm_memory_stats(&s);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "device_bytes",
        (Py_ssize_t)s.device_bytes, "device_bytes_used",
        (Py_ssize_t)s.device_bytes_used, "pinned_bytes",
        (Py_ssize_t)s.pinned_bytes, "pinned_bytes_used",
        (Py_ssize_t)s.pinned_bytes_used, "blocks", (Py_ssize_t)s.blocks,
        "pinned_blocks", (Py_ssize_t)s.pinned_blocks, "device_allocations",
        (Py_ssize_t)s.device_allocations, "pinned_allocations",
        (Py_ssize_t)s.pinned_allocations);
}

PyDoc_STRVAR(driver_version_doc, "get_cuda_driver_version()\n"
                                 "--\n"
                                 "\n"
                                 "The CUDA version that the driver supports, "
                                 "as (major, minor); None where\n"
                                 "there is no driver.");

static PyObject *
driver_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    int version;
    Py_BEGIN_ALLOW_THREADS version = wm_driver_version();
    Py_END_ALLOW_THREADS if (version == 0)
    {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("ii", version / 1000, version % 1000 / 10);
}

static PyMethodDef functions[] = {
    {"_memory_stats", memory_stats, METH_NOARGS, memory_stats_doc},
    {"get_cuda_driver_version", driver_version, METH_NOARGS,
     driver_version_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        add_exceptions,        wm_py_add_device,      wm_py_add_stream,
        wm_py_add_event,       wm_py_add_array,       wm_py_add_view,
        wm_py_add_collectives, wm_py_add_comm,        wm_py_add_request,
        wm_py_add_prequest,    wm_py_add_partitioned, wm_py_add_passing,
        wm_py_add_patch,       wm_py_add_matched,     wm_py_add_buffered,
        wm_py_add_staged,      wm_py_add_checked,     wm_py_add_reduced,
        wm_py_add_objects,     wm_py_add_parts,       wm_py_add_stats,
    };
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "warpmpi does not support sub-interpreters");
        return -1;
    }
    if (executed) {
        PyErr_SetString(PyExc_ImportError,
                        "warpmpi._core can be loaded only once a process");
        return -1;
    }
    if (wm_py_watch_gil() < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i](module) < 0) {
            return -1;
        }
    }
    if (PyModule_AddStringConstant(module, "__version__", WM_VERSION) < 0) {
        return -1;
    }
    executed = true; // what failed may be tried again: the cause may be gone
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

PyDoc_STRVAR(module_doc, "The C core of warpmpi. Its public names are those "
                         "of the package warpmpi.");

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,  .m_name = "warpmpi._core", .m_doc = module_doc,
    .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
