// SPDX-License-Identifier: BSD-3-Clause
// The attributes of devices are in warpmpi/_device_facts.py.
#include "python/device/py_device.h"

#include <stddef.h>
#include <structmember.h>

#include "array/array.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/protocol/captured.h"

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

int
wm_py_after_wait(int code, wm_error_t *err)
{
    if (code == 0 && wm_coll_on_stream_any())
        WM_PY_UNLOCKED(code = wm_coll_on_stream_find_failures(err));
    if (code == 0 && wm_captured_any())
        WM_PY_UNLOCKED(code = wm_captured_find_failures(err));
    return wm_py_result(code, err);
}

int
wm_py_synchronize_device(int ordinal)
{
    wm_error_t err;
    int status = 0;
    if (ordinal >= 0)
        WM_PY_UNLOCKED(status = wm_device_synchronize(ordinal, &err);
                       wm_storage_free_kept());
    return wm_py_after_wait(status, &err);
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
