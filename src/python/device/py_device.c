// SPDX-License-Identifier: BSD-3-Clause
// The attributes of devices are in warpmpi/_device_facts.py.
#include "python/device/py_device.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    int ordinal; // -1 is the CPU
} device_t;

PyObject *
wm_py_device(int ordinal)
{
    // Made once and kept, so that equal devices are identical.
    PyObject **entry = &wm_py_state->devices[ordinal + 1];
    if (*entry == NULL) {
        PyTypeObject *type = wm_py_state->device_type;
        device_t *device = PyObject_New(device_t, type);
        if (device == NULL)
            return NULL;
        device->ordinal = ordinal;
        *entry = (PyObject *)device;
    }
    return Py_NewRef(*entry);
}

int
wm_py_device_ordinal(PyObject *device)
{
    return ((device_t *)device)->ordinal;
}

static PyMemberDef members[] = {
    {"ordinal", T_INT, offsetof(device_t, ordinal), READONLY,
     "CUDA's ordinal among the visible devices; -1 for the CPU."},
    {0},
};

PyDoc_STRVAR(
    synchronize_doc,
    "synchronize($self, /)\n--\n\n"
    "Wait for all work on the device, also that of other libraries in\n"
    "this process. Does nothing for the CPU. Raises CudaError if work\n"
    "has failed.");

static PyObject *
device_synchronize(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (wm_py_synchronize_device(((device_t *)self)->ordinal) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"synchronize", device_synchronize, METH_NOARGS, synchronize_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(device_doc,
             "A CUDA device, or the CPU. Made by wm.get_device. The same\n"
             "device is always the same object, and equal to its name\n"
             "(\"cuda:0\"). Reading its attributes makes no context on the\n"
             "device; using the device does.");

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)device_doc},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec wm_py_device_spec = {
    .name = "warpmpi.Device",
    .basicsize = sizeof(device_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = type_slots,
};

static const wm_device_t *
facts_of(PyObject *object)
{
    const wm_device_t *facts;
    wm_error_t err;
    int device;
    if (wm_py_cuda_device(object, "this", &device) < 0)
        return NULL;
    if (wm_device_describe(device, &facts, &err) == 0)
        return facts;
    wm_py_raise(&err);
    return NULL;
}

PyDoc_STRVAR(facts_doc,
             "_device_facts(device, /)\n--\n\n"
             "Return (name, UUID, PCI address, bytes, major compute\n"
             "capability) of a CUDA device.");

static PyObject *
device_facts(PyObject *Py_UNUSED(module), PyObject *object)
{
    const wm_device_t *facts = facts_of(object);
    return facts == NULL
               ? NULL
               : Py_BuildValue("sy#sni", facts->name, facts->uuid.bytes,
                               (Py_ssize_t)16, facts->pci_bus_id,
                               (Py_ssize_t)facts->total_memory, facts->major);
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
    return PyBool_FromLong(wm_device_forked());
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

PyMethodDef wm_py_device_functions[] = {
    {"_device_active", active, METH_O, active_doc},
    {"_device_facts", device_facts, METH_O, facts_doc},
    {"_device_free_memory", free_memory, METH_O, free_memory_doc},
    {"_device_forked", forked, METH_NOARGS, forked_doc},
    {0},
};
