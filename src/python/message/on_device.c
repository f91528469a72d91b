// SPDX-License-Identifier: BSD-3-Clause
// Tells whether a message is GPU memory, before the message is parsed.
#include "cuda/device.h"
#include "python/message/raw.h"
#include "python/message/specification.h"
#include "python/view/dlpack.h"
#include "python/view/view.h"

// Returns true if DLPack names any device but the host.
static bool
claims_device(PyObject *object)
{
    PyObject *place = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    bool device = false;
    if (place != NULL && PyTuple_Check(place) && PyTuple_GET_SIZE(place) > 0)
        switch (PyLong_AsLong(PyTuple_GET_ITEM(place, 0))) {
        case WM_DL_CPU:
        case WM_DL_CUDA_HOST:
            break;
        default:
            device = true;
        }
    Py_XDECREF(place);
    PyErr_Clear();
    return device;
}

// Returns true for GPU memory whose elements have no dtype of ours. An array
// that cannot be read is what it claims to be, if there are GPUs.
static bool
raw_on_device(PyObject *array)
{
    Py_buffer raw;
    PyObject *unused;
    wm_error_t err;
    wm_pointer_t memory;
    if (wm_py_raw_read(array, Py_None, false, &raw, &unused) < 0) {
        PyErr_Clear();
        return wm_device_count() > 0
               && (PyObject_HasAttrString(array, "__cuda_array_interface__")
                   || claims_device(array));
    }
    bool device = wm_pointer_describe(raw.buf, &memory, &err) < 0
                  || wm_memory_on_device(&memory);
    PyBuffer_Release(&raw);
    return device;
}

bool
wm_py_message_on_device(PyObject *object)
{
    wm_view_t view;
    if (object == Py_None || PyLong_Check(object) || PyUnicode_Check(object)
        || wm_py_mpi_is_datatype(object) || wm_py_mpi_is_bottom(object)
        || wm_py_mpi_is_in_place(object))
        return false;
    if ((PyList_Check(object) || PyTuple_Check(object))
        && PySequence_Fast_GET_SIZE(object) == 0)
        return false;
    object = wm_py_message_array(object);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    Py_INCREF(object); // reading it may change the list
    bool parsed = wm_py_view_parse(object, false, "buffer", &view) == 0;
    PyErr_Clear();
    bool device = parsed ? wm_memory_on_device(&view.memory)
                         : raw_on_device(object);
    if (parsed)
        wm_py_view_release(&view);
    Py_DECREF(object);
    PyErr_Restore(kind, value, trace);
    return device;
}

PyDoc_STRVAR(is_on_device_doc,
             "is_on_device($module, obj, /)\n--\n\n"
             "Return True if an array, or the array in a [array, …] list, is\n"
             "GPU memory.");

static PyObject *
is_on_device(PyObject *Py_UNUSED(module), PyObject *object)
{
    return PyBool_FromLong(wm_py_message_on_device(object));
}

PyMethodDef wm_py_on_device_functions[] = {
    {"is_on_device", is_on_device, METH_O, is_on_device_doc},
    {0},
};
