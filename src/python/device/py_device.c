// SPDX-License-Identifier: BSD-3-Clause
#include "python/device/py_device.h"

#include <stdio.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    int ordinal; // -1 is the CPU
} device_t;

PyObject *
wm_py_device(int ordinal)
{
    // Made once and kept, so that identity is equality.
    PyObject **entry = &wm_py_state->devices[ordinal + 1];
    if (*entry == NULL) {
        PyTypeObject *type = wm_py_state->device_type;
        device_t *device = PyObject_New(device_t, type);
        if (device == NULL) {
            return NULL;
        }
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

// The facts of a CUDA device, borrowed, or NULL with an exception.
static const wm_device_t *
facts_of(PyObject *self)
{
    const wm_device_t *facts;
    wm_error_t err;
    if (wm_device_describe(((device_t *)self)->ordinal, &facts, &err) < 0) {
        wm_py_raise(&err);
        return NULL;
    }
    return facts;
}

static bool
is_cpu(PyObject *self)
{
    return ((device_t *)self)->ordinal < 0;
}

static PyObject *
device_str(PyObject *self)
{
    return is_cpu(self)
               ? PyUnicode_FromString("cpu")
               : PyUnicode_FromFormat("cuda:%d", ((device_t *)self)->ordinal);
}

static PyObject *
device_repr(PyObject *self)
{
    return is_cpu(self) ? PyUnicode_FromString("Device('cpu')")
                        : PyUnicode_FromFormat("Device('cuda:%d')",
                                               ((device_t *)self)->ordinal);
}

// As its alias, to which it is equal.
static Py_hash_t
device_hash(PyObject *self)
{
    PyObject *alias = device_str(self);
    if (alias == NULL) {
        return -1;
    }
    Py_hash_t hash = PyObject_Hash(alias);
    Py_DECREF(alias);
    return hash;
}

static PyObject *
device_richcompare(PyObject *self, PyObject *other, int op)
{
    if (op != Py_EQ && op != Py_NE) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (Py_IS_TYPE(other, Py_TYPE(self))) {
        return PyBool_FromLong((self == other) == (op == Py_EQ));
    }
    if (!PyUnicode_Check(other)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *alias = device_str(self);
    if (alias == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_RichCompare(alias, other, op);
    Py_DECREF(alias);
    return result;
}

static PyObject *
get_alias(PyObject *self, void *unused)
{
    (void)unused;
    return device_str(self);
}

static PyObject *
get_ordinal(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((device_t *)self)->ordinal);
}

static PyObject *
get_is_cuda(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!is_cpu(self));
}

static PyObject *
get_is_cpu(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(is_cpu(self));
}

static PyObject *
get_name(PyObject *self, void *unused)
{
    (void)unused;
    if (is_cpu(self)) {
        return PyUnicode_FromString("CPU");
    }
    const wm_device_t *facts = facts_of(self);
    return facts != NULL ? PyUnicode_FromString(facts->name) : NULL;
}

// As nvidia-smi -L writes it.
static PyObject *
get_uuid(PyObject *self, void *unused)
{
    (void)unused;
    if (is_cpu(self)) {
        Py_RETURN_NONE;
    }
    const wm_device_t *facts = facts_of(self);
    if (facts == NULL) {
        return NULL;
    }
    char text[48] = "GPU-";
    size_t used = 4;
    for (int i = 0; i < 16; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-"
                                                                       : "",
                                 (unsigned char)facts->uuid.bytes[i]);
    }
    return PyUnicode_FromString(text);
}

static PyObject *
get_pci_bus_id(PyObject *self, void *unused)
{
    (void)unused;
    if (is_cpu(self)) {
        Py_RETURN_NONE;
    }
    const wm_device_t *facts = facts_of(self);
    return facts != NULL ? PyUnicode_FromString(facts->pci_bus_id) : NULL;
}

static PyObject *
get_total_memory(PyObject *self, void *unused)
{
    (void)unused;
    if (is_cpu(self)) {
        return PyLong_FromLongLong((long long)sysconf(_SC_PHYS_PAGES)
                                   * sysconf(_SC_PAGESIZE));
    }
    const wm_device_t *facts = facts_of(self);
    return facts != NULL ? PyLong_FromSize_t(facts->total_memory) : NULL;
}

static PyObject *
get_free_memory(PyObject *self, void *unused)
{
    (void)unused;
    if (is_cpu(self)) {
        return PyLong_FromLongLong((long long)sysconf(_SC_AVPHYS_PAGES)
                                   * sysconf(_SC_PAGESIZE));
    }
    size_t left, total;
    wm_error_t err;
    int status;
    Py_BEGIN_ALLOW_THREADS // the first use of a device takes long
        status = wm_device_memory(((device_t *)self)->ordinal, &left, &total,
                                  &err);
    Py_END_ALLOW_THREADS return status < 0 ? wm_py_raise(&err)
                                           : PyLong_FromSize_t(left);
}

static PyGetSetDef getset[] = {
    {"alias", get_alias, NULL, "Its name: \"cuda:0\", \"cpu\".", NULL},
    {"ordinal", get_ordinal, NULL,
     "CUDA's ordinal among the visible devices; -1 for the CPU.", NULL},
    {"is_cuda", get_is_cuda, NULL, "Whether it is a CUDA device.", NULL},
    {"is_cpu", get_is_cpu, NULL, "Whether it is the CPU.", NULL},
    {"name", get_name, NULL, "The product's name; \"CPU\" for the CPU.", NULL},
    {"uuid", get_uuid, NULL,
     "The UUID as nvidia-smi -L writes it; None for the CPU.", NULL},
    {"pci_bus_id", get_pci_bus_id, NULL,
     "The PCI address \"domain:bus:device.function\"; None for the CPU.",
     NULL},
    {"total_memory", get_total_memory, NULL, "All memory, in bytes.", NULL},
    {"free_memory", get_free_memory, NULL,
     "Free memory in bytes, right now. Makes the device's context.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(synchronize_doc,
             "synchronize($self, /)\n"
             "--\n"
             "\n"
             "Waits for all work on the device, anybody's in this process. "
             "Does nothing\n"
             "for the CPU. CudaError tells of work that failed.");

static PyObject *
device_synchronize(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (wm_py_synchronize_device(((device_t *)self)->ordinal) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

// Pickled by name: on the other side it is that process's device.
static PyObject *
device_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *core = PyImport_ImportModule("warpmpi._core");
    if (core == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    PyObject *get = PyObject_GetAttrString(core, "get_device");
    PyObject *alias = device_str(self);
    if (get != NULL && alias != NULL) {
        result = Py_BuildValue("O(O)", get, alias);
    }
    Py_XDECREF(alias);
    Py_XDECREF(get);
    Py_DECREF(core);
    return result;
}

static PyMethodDef methods[] = {
    {"synchronize", device_synchronize, METH_NOARGS, synchronize_doc},
    {"__reduce__", device_reduce, METH_NOARGS, "Pickles by name."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(device_doc, "A CUDA device, or the CPU. Made by wm.get_device; "
                         "the same device is always\n"
                         "the same object, and equal to its name "
                         "(\"cuda:0\"). Looking at a device\n"
                         "makes no context on it; using it does.");

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)device_doc},
    {Py_tp_str, device_str},
    {Py_tp_repr, device_repr},
    {Py_tp_hash, device_hash},
    {Py_tp_richcompare, device_richcompare},
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec wm_py_device_spec = {
    .name = "warpmpi.Device",
    .basicsize = sizeof(device_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE
             | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = type_slots,
};
