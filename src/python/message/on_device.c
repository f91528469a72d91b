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

// Reads memory whose elements have no dtype of ours. Returns 0, or -1 if the
// array cannot be read, without an exception.
static int
look_raw(PyObject *array, wm_view_t *view)
{
    Py_buffer raw;
    PyObject *unused;
    wm_error_t err;
    int code = wm_py_raw_read(array, Py_None, false, &raw, &unused);
    if (code == 0) {
        view->array.data = raw.buf;
        view->producer.kind = WM_PRODUCER_NONE;
        if (wm_pointer_describe(raw.buf, &view->memory, &err) < 0)
            view->memory.kind = WM_MEMORY_DEVICE;
        else
            code = wm_py_view_ask_producer(array, "buffer", view);
        PyBuffer_Release(&raw);
    }
    PyErr_Clear();
    return code;
}

void
wm_py_message_look(PyObject *object, wm_pointer_t *memory,
                   wm_producer_t *producer)
{
    wm_view_t view;
    *memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    producer->kind = WM_PRODUCER_NONE;
    if (object == Py_None || PyLong_Check(object) || PyUnicode_Check(object)
        || wm_py_mpi_is_datatype(object) || wm_py_mpi_is_bottom(object)
        || wm_py_mpi_is_in_place(object))
        return;
    if ((PyList_Check(object) || PyTuple_Check(object))
        && PySequence_Fast_GET_SIZE(object) == 0)
        return;
    object = wm_py_message_array(object);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    Py_INCREF(object); // reading it may change the list
    bool parsed = wm_py_view_parse(object, false, "buffer", &view) == 0;
    PyErr_Clear();
    if (parsed || look_raw(object, &view) == 0) {
        *memory = view.memory;
        *producer = view.producer;
    }
    else if (wm_device_count() > 0
             && (PyObject_HasAttrString(object, "__cuda_array_interface__")
                 || claims_device(object)))
        memory->kind = WM_MEMORY_DEVICE;
    if (parsed)
        wm_py_view_release(&view);
    Py_DECREF(object);
    PyErr_Restore(kind, value, trace);
}

bool
wm_py_message_on_device(PyObject *object)
{
    wm_pointer_t memory;
    wm_producer_t producer;
    wm_py_message_look(object, &memory, &producer);
    return wm_memory_on_device(&memory);
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
