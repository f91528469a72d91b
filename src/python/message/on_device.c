// SPDX-License-Identifier: BSD-3-Clause
// Tells whether a message is GPU memory, before the message is parsed.
#include "cuda/device.h"
#include "python/message/raw.h"
#include "python/message/specification.h"
#include "python/view/dlpack.h"
#include "python/view/view.h"

// Returns 1 if an object says that it is GPU memory, or if DLPack names any
// device but the host; 0 or -1 as wm_py_message_claims_device().
static int
claims_device(PyObject *object)
{
    PyObject *shown;
    int device = PyObject_GetOptionalAttr(
        object, wm_py_state->names.cuda_array_interface, &shown);
    Py_XDECREF(shown);
    if (device != 0)
        return wm_py_drop_refusal() < 0 ? -1 : 1;
    PyObject *answer = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (answer != NULL && PyTuple_Check(answer)
        && PyTuple_GET_SIZE(answer) > 0)
        switch (PyLong_AsLong(PyTuple_GET_ITEM(answer, 0))) {
        case WM_DL_CPU:
        case WM_DL_CUDA_HOST:
            break;
        default:
            device = 1;
        }
    Py_XDECREF(answer);
    return wm_py_drop_refusal() < 0 ? -1 : device;
}

// Reads memory whose elements have no dtype of ours. Returns 0, or -1 if the
// array cannot be read, without an exception unless the program's own code
// raised it.
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
    return wm_py_drop_refusal() < 0 ? -1 : code;
}

// Looks at an array that has no view of ours. Returns 0 or -1 as
// wm_py_message_look().
static int
look_otherwise(PyObject *array, wm_pointer_t *memory, wm_producer_t *producer)
{
    wm_view_t view;
    if (wm_py_drop_refusal() < 0)
        return -1;
    if (look_raw(array, &view) == 0) {
        *memory = view.memory;
        *producer = view.producer;
        return 0;
    }
    int claims = PyErr_Occurred() != NULL ? -1
                 : wm_device_count() > 0  ? claims_device(array)
                                          : 0;
    if (claims > 0)
        memory->kind = WM_MEMORY_DEVICE;
    return claims < 0 ? -1 : 0;
}

int
wm_py_message_look(PyObject *object, wm_pointer_t *memory,
                   wm_producer_t *producer)
{
    wm_view_t view;
    *memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    producer->kind = WM_PRODUCER_NONE;
    if (object == Py_None || PyLong_Check(object) || PyUnicode_Check(object)
        || wm_py_mpi_is_datatype(object) || wm_py_mpi_is_bottom(object)
        || wm_py_mpi_is_in_place(object))
        return 0;
    if ((PyList_Check(object) || PyTuple_Check(object))
        && PySequence_Fast_GET_SIZE(object) == 0)
        return 0;
    object = Py_NewRef(wm_py_message_array(object)); // its code may change it
    int code = 0;
    if (wm_py_view_parse(object, false, "buffer", &view) == 0) {
        *memory = view.memory;
        *producer = view.producer;
        wm_py_view_release(&view);
    }
    else
        code = look_otherwise(object, memory, producer);
    Py_DECREF(object);
    return code;
}

int
wm_py_message_claims_device(PyObject *object)
{
    wm_pointer_t memory;
    wm_producer_t producer;
    return wm_py_message_look(object, &memory, &producer) < 0
               ? -1
               : wm_memory_on_device(&memory);
}

bool
wm_py_message_on_device(PyObject *object)
{
    PyObject *raised = PyErr_GetRaisedException();
    int device = wm_py_message_claims_device(object);
    PyErr_SetRaisedException(raised);
    return device != 0;
}

PyDoc_STRVAR(is_on_device_doc,
             "is_on_device($module, obj, /)\n--\n\n"
             "Return True if an array, or the array in a [array, …] list, is\n"
             "GPU memory. Raises what the array's own code raises.");

static PyObject *
is_on_device(PyObject *Py_UNUSED(module), PyObject *object)
{
    int device = wm_py_message_claims_device(object);
    return device < 0 ? NULL : PyBool_FromLong(device);
}

PyMethodDef wm_py_on_device_functions[] = {
    {"is_on_device", is_on_device, METH_O, is_on_device_doc},
    {0},
};
