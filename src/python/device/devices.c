// SPDX-License-Identifier: BSD-3-Clause
// Finds devices from names, ordinals, other libraries' device objects and the
// one current on a thread; and the package's functions on devices.
#include "python/device/py_device.h"

#include <stdlib.h>
#include <string.h>

// Loads and starts the driver without the GIL, as this takes long.
static int
count_devices(void)
{
    int count;
    WM_PY_UNLOCKED(count = wm_device_count());
    return count;
}

// Returns the default device. Found once, as the launcher's environment does
// not change.
static int
default_device(void)
{
    static int found = -2;
    if (found == -2) {
        (void)count_devices();
        found = wm_device_default();
    }
    return found;
}

// Finds the device current on this thread (-1: the CPU). Returns 0, or -1 with
// an exception.
static int
current_device(int *ordinal)
{
    PyObject *thread = PyThreadState_GetDict(); // borrowed
    PyObject *key = (PyObject *)wm_py_state->device_type;
    if (thread != NULL) {
        PyObject *device = PyDict_GetItemWithError(thread, key); // borrowed
        if (device != NULL) {
            *ordinal = wm_py_device_ordinal(device);
            return 0;
        }
        if (PyErr_Occurred())
            return -1;
    }
    *ordinal = default_device();
    return 0;
}

// Raises ValueError that names the given device and every valid one.
static int
unknown_device(PyObject *given)
{
    wm_error_t err = {.text = "no CUDA device"};
    if (count_devices() == 0)
        (void)!wm_driver_load(&err);
    Py_XDECREF(wm_py_cold("warpmpi._foreign", "unknown_device", "(Os)", given,
                          err.text));
    return -1;
}

static int
check_ordinal(PyObject *given, long ordinal, int *device)
{
    if (ordinal < -1 || (ordinal >= 0 && ordinal >= count_devices()))
        return unknown_device(given);
    *device = (int)ordinal;
    return 0;
}

static int
device_from_text(PyObject *given, const char *text, int *device)
{
    if (strcmp(text, "cpu") == 0) {
        *device = -1;
        return 0;
    }
    if (strcmp(text, "cuda") == 0) {
        int current;
        if (current_device(&current) < 0)
            return -1;
        if (current < 0)
            current = default_device();
        if (current < 0)
            return unknown_device(given);
        *device = current;
        return 0;
    }
    if (strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9') {
        char *end;
        long ordinal = strtol(text + 5, &end, 10);
        if (*end == '\0')
            return check_ordinal(given, ordinal, device);
    }
    return unknown_device(given);
}

// Finds a device from a name or an ordinal, which was found in `given`.
static int
device_from_value(PyObject *given, PyObject *value, int *device)
{
    if (PyUnicode_Check(value)) {
        const char *text = PyUnicode_AsUTF8(value);
        return text != NULL ? device_from_text(given, text, device) : -1;
    }
    int overflow;
    long ordinal = PyLong_AsLongAndOverflow(value, &overflow);
    return overflow ? unknown_device(given)
                    : check_ordinal(given, ordinal, device);
}

int
wm_py_device_from_object(PyObject *object, int *device)
{
    if (object == NULL || object == Py_None)
        return current_device(device);
    if (Py_IS_TYPE(object, wm_py_state->device_type)) {
        *device = wm_py_device_ordinal(object);
        return 0;
    }
    if (PyUnicode_Check(object)
        || (PyLong_Check(object) && !PyBool_Check(object)))
        return device_from_value(object, object, device);
    PyObject *value = wm_py_cold("warpmpi._foreign", "device_of", "(O)",
                                 object);
    int status = value != NULL ? device_from_value(object, value, device) : -1;
    Py_XDECREF(value);
    return status;
}

int
wm_py_cuda_device(PyObject *object, const char *what, int *ordinal)
{
    int device;
    if (wm_py_device_from_object(object, &device) < 0)
        return -1;
    if (device < 0)
        return wm_py_fail(PyExc_ValueError,
                          "%s needs a CUDA device, not 'cpu'", what);
    *ordinal = device;
    return 0;
}

PyDoc_STRVAR(
    get_device_doc,
    "get_device(ident=None)\n--\n\n"
    "Return the device that `ident` names: \"cpu\", \"cuda\" (the current\n"
    "CUDA device), \"cuda:1\", an ordinal, a device of warpmpi, Warp,\n"
    "Torch or CuPy, or None for the current device of this thread. If\n"
    "no device was set, the current device is the one of this\n"
    "process's local rank, as the MPI launcher gives it, modulo the\n"
    "number of visible devices, or the CPU if there is none.\n\n"
    "Raises ValueError for an unknown device, and lists the valid\n"
    "ones.");

static PyObject *
get_device(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ident", NULL};
    PyObject *ident = NULL; // borrowed
    int ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:get_device", names,
                                     &ident)
        || wm_py_device_from_object(ident, &ordinal) < 0)
        return NULL;
    return wm_py_device(ordinal);
}

PyDoc_STRVAR(get_cuda_device_count_doc,
             "get_cuda_device_count()\n--\n\n"
             "Number of visible CUDA devices; 0 without a driver.");

static PyObject *
get_cuda_device_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(count_devices());
}

PyDoc_STRVAR(set_device_doc,
             "set_device(ident, /)\n--\n\n"
             "Make a device current on this thread: later calls with\n"
             "device=None use it. None restores the default. Other threads\n"
             "keep their device, and CUDA's own current context does not\n"
             "change.");

static PyObject *
set_device(PyObject *Py_UNUSED(module), PyObject *ident)
{
    PyObject *thread = PyThreadState_GetDict(); // borrowed
    PyObject *key = (PyObject *)wm_py_state->device_type;
    int ordinal;
    if (thread == NULL)
        return PyErr_Format(PyExc_RuntimeError, "no thread state");
    if (ident == Py_None) {
        if (PyDict_DelItem(thread, key) < 0) {
            if (!PyErr_ExceptionMatches(PyExc_KeyError))
                return NULL;
            PyErr_Clear();
        }
        Py_RETURN_NONE;
    }
    if (wm_py_device_from_object(ident, &ordinal) < 0)
        return NULL;
    PyObject *device = wm_py_device(ordinal);
    int status = device != NULL ? PyDict_SetItem(thread, key, device) : -1;
    Py_XDECREF(device);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(synchronize_device_doc,
             "synchronize_device(device=None)\n--\n\n"
             "Wait for all work on a device (None: the current one). Returns\n"
             "at once for the CPU.");

static PyObject *
synchronize_device(PyObject *Py_UNUSED(module), PyObject *args,
                   PyObject *kwargs)
{
    static char *names[] = {"device", NULL};
    PyObject *device = NULL; // borrowed
    int ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:synchronize_device",
                                     names, &device)
        || wm_py_device_from_object(device, &ordinal) < 0
        || wm_py_synchronize_device(ordinal) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static const wm_device_t *
facts_of(PyObject *object)
{
    const wm_device_t *facts;
    wm_error_t err;
    int device;
    if (wm_py_cuda_device(object, "this", &device) < 0)
        return NULL;
    int code = wm_device_describe(device, &facts, &err);
    return wm_py_result(code, &err) < 0 ? NULL : facts;
}

PyDoc_STRVAR(facts_doc,
             "_device_facts(device, /)\n--\n\n"
             "Return (name, UUID, PCI address, bytes, major and minor\n"
             "compute capability) of a CUDA device.");

static PyObject *
device_facts(PyObject *Py_UNUSED(module), PyObject *object)
{
    const wm_device_t *facts = facts_of(object);
    return facts == NULL
               ? NULL
               : Py_BuildValue("sy#snii", facts->name, facts->uuid.bytes,
                               (Py_ssize_t)16, facts->pci_bus_id,
                               (Py_ssize_t)facts->total_memory, facts->major,
                               facts->minor);
}

PyDoc_STRVAR(free_memory_doc,
             "_device_free_memory(device, /)\n--\n\n"
             "Return the free bytes of a device. Makes the device's context.");

static PyObject *
free_memory(PyObject *Py_UNUSED(module), PyObject *object)
{
    size_t left, total;
    wm_error_t err;
    int device, status;
    if (wm_py_cuda_device(object, "this", &device) < 0)
        return NULL;
    WM_PY_UNLOCKED(status = wm_device_memory(
                       device, &left, &total,
                       &err)); // the first use of a device takes long
    return status < 0 ? wm_py_raise(&err) : PyLong_FromSize_t(left);
}

PyDoc_STRVAR(
    forked_doc,
    "_device_forked()\n--\n\n"
    "Return True if this process is a forked child of a process that\n"
    "uses GPUs.");

static PyObject *
forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_driver_forked());
}

PyDoc_STRVAR(active_doc,
             "_device_active(device, /)\n--\n\n"
             "Return True if this process uses the device, through any\n"
             "library.");

static PyObject *
active(PyObject *Py_UNUSED(module), PyObject *object)
{
    bool found;
    wm_error_t err;
    int device;
    if (wm_py_cuda_device(object, "this", &device) < 0)
        return NULL;
    return wm_device_active(device, &found, &err) < 0 ? wm_py_raise(&err)
                                                      : PyBool_FromLong(found);
}

PyMethodDef wm_py_devices_functions[] = {
    WM_PY_KEYWORDS("get_device", get_device),
    {"get_cuda_device_count", get_cuda_device_count, METH_NOARGS,
     get_cuda_device_count_doc},
    {"set_device", set_device, METH_O, set_device_doc},
    WM_PY_KEYWORDS("synchronize_device", synchronize_device),
    {"_device_active", active, METH_O, active_doc},
    {"_device_facts", device_facts, METH_O, facts_doc},
    {"_device_free_memory", free_memory, METH_O, free_memory_doc},
    {"_device_forked", forked, METH_NOARGS, forked_doc},
    {0},
};
