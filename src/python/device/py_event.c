// SPDX-License-Identifier: BSD-3-Clause
// wm.Event: a CUDA event of ours. GIL held.
#include "cuda/event.h"

#include "python/device/py_device.h"
#include "python/device/py_stream.h"

typedef struct {
    PyObject_HEAD
    int device;
    CUevent handle;
} event_t;

static PyObject *
event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", NULL};
    PyObject *given = NULL; // borrowed
    int device, status;
    CUevent handle;
    wm_error_t err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Event", names, &given)
        || wm_py_cuda_device(given, "an event", &device) < 0)
        return NULL;
    WM_PY_UNLOCKED(
        status = wm_event_create(
            device, &handle, &err)); // the first use of a device takes long
    if (status < 0)
        return wm_py_raise(&err);
    event_t *event = (event_t *)type->tp_alloc(type, 0);
    if (event == NULL) {
        wm_event_destroy(device, handle);
        return NULL;
    }
    event->device = device;
    event->handle = handle;
    return (PyObject *)event;
}

static void
event_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    event_t *event = (event_t *)self;
    if (event->handle != NULL)
        wm_event_destroy(event->device, event->handle);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
get_device(PyObject *self, void *Py_UNUSED(unused))
{
    return wm_py_device(((event_t *)self)->device);
}

static PyObject *
get_cuda_event(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr((void *)((event_t *)self)->handle);
}

static PyObject *
get_is_complete(PyObject *self, void *Py_UNUSED(unused))
{
    event_t *event = (event_t *)self;
    bool done;
    wm_error_t err;
    if (wm_event_done(event->device, event->handle, &done, &err) < 0)
        return wm_py_raise(&err);
    return PyBool_FromLong(done);
}

static PyGetSetDef getset[] = {
    {"device", get_device, NULL, "The event's wm.Device.", NULL},
    {"cuda_event", get_cuda_event, NULL, "The CUevent handle as an int.",
     NULL},
    {"is_complete", get_is_complete, NULL,
     "True if the work before the last record has ended, or if the\n"
     "event was never recorded.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    event_record_doc,
    "record($self, /, stream)\n--\n\n"
    "Records the event after the work submitted so far to a stream, ours\n"
    "or anyone's. ValueError for a stream of another device.");

static PyObject *
event_record(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    event_t *event = (event_t *)self;
    PyObject *stream; // borrowed
    int device;
    CUstream handle;
    wm_error_t err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:record", names, &stream)
        || wm_py_stream_from_object(stream, "stream", &device, &handle) < 0)
        return NULL;
    if (event->device != device)
        return PyErr_Format(PyExc_ValueError,
                            "an event of cuda:%d cannot be recorded on a "
                            "stream of cuda:%d",
                            event->device, device);
    return wm_py_none(wm_event_record(device, event->handle, handle, &err),
                      &err);
}

PyDoc_STRVAR(
    synchronize_doc,
    "synchronize($self, /)\n--\n\n"
    "Wait on the host for the work before the last record. Raises\n"
    "CudaError if work has failed, and the errors of a collective on\n"
    "a stream as Stream.synchronize does.");

static PyObject *
event_synchronize(PyObject *self, PyObject *Py_UNUSED(unused))
{
    event_t *event = (event_t *)self;
    wm_error_t err;
    int status;
    WM_PY_UNLOCKED(
        status = wm_event_synchronize(event->device, event->handle, &err));
    return wm_py_after_wait(status, &err) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    WM_PY_KEYWORDS("record", event_record),
    {"synchronize", event_synchronize, METH_NOARGS, synchronize_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    event_doc,
    "Event(device=None)\n--\n\n"
    "An event of a CUDA device (None: the current one). The event is\n"
    "recorded on a stream. Streams of any device and the host can\n"
    "wait for it. It measures no time.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)event_doc}, {Py_tp_new, event_new},
    {Py_tp_dealloc, event_dealloc}, {Py_tp_getset, getset},
    {Py_tp_methods, methods},       {0, NULL},
};

PyType_Spec wm_py_event_spec = {
    .name = "warpmpi.Event",
    .basicsize = sizeof(event_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
