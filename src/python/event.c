// SPDX-License-Identifier: BSD-3-Clause
#include "python/event.h"

#include <string.h>

#include "python/device.h"
#include "python/stream.h"
#include "python/view.h"

typedef struct {
    PyObject_HEAD
    int device;
    CUevent handle;
    wm_event_kind_t kind;
} event_t;

static PyObject *
event_new(PyTypeObject *type, int device, wm_event_kind_t kind)
{
    CUevent handle;
    wm_error_t err;
    int status;
    Py_BEGIN_ALLOW_THREADS // the first use of a device takes long
        status = wm_event_create(device, kind, &handle, &err);
    Py_END_ALLOW_THREADS if (status < 0)
    {
        return wm_raise(&err);
    }
    event_t *event = (event_t *)type->tp_alloc(type, 0);
    if (event == NULL) {
        wm_event_destroy(device, handle);
        return NULL;
    }
    event->device = device;
    event->handle = handle;
    event->kind = kind;
    return (PyObject *)event;
}

PyObject *
wm_python_event(int device)
{
    return event_new(wm_state()->event_type, device, WM_EVENT_ORDER);
}

static event_t *
event_checked(PyObject *object, const char *argument)
{
    if (!Py_IS_TYPE(object, wm_state()->event_type)) {
        PyErr_Format(PyExc_TypeError, "%s must be a wm.Event, not %.200s",
                     argument, Py_TYPE(object)->tp_name);
        return NULL;
    }
    return (event_t *)object;
}

int
wm_python_event_record(PyObject *object, int device, CUstream stream)
{
    wm_error_t err;
    event_t *event = event_checked(object, "event");
    if (event == NULL) {
        return -1;
    }
    if (event->device != device) {
        PyErr_Format(PyExc_ValueError,
                     "an event of cuda:%d cannot be recorded on a stream of "
                     "cuda:%d",
                     event->device, device);
        return -1;
    }
    if (wm_event_record(device, event->handle, stream, &err) < 0) {
        wm_raise(&err);
        return -1;
    }
    return 0;
}

int
wm_python_event_from_object(PyObject *object, const char *argument,
                            CUevent *event)
{
    // Torch's and Warp's name, CuPy's, Numba's.
    static const char *const names[] = {"cuda_event", "ptr", "handle"};
    if (Py_IS_TYPE(object, wm_state()->event_type)) {
        *event = ((event_t *)object)->handle;
        return 0;
    }
    PyObject *value = PyLong_Check(object) ? Py_NewRef(object) : NULL;
    for (int i = 0; i < 3 && value == NULL; i++) {
        value = PyObject_GetAttrString(object, names[i]);
        PyErr_Clear();
    }
    void *handle = NULL;
    if (value != NULL && PyLong_Check(value) && !PyBool_Check(value)) {
        handle = PyLong_AsVoidPtr(value);
        PyErr_Clear();
    }
    Py_XDECREF(value);
    if (handle == NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s: an event is a wm.Event, a recorded event of CuPy, "
                     "Torch or Warp, or a handle as an int, not %.200s",
                     argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    *event = handle;
    return 0;
}

static PyObject *
event_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "enable_timing", "interprocess", NULL};
    PyObject *device = NULL; // borrowed
    int timing = 0, interprocess = 0;
    int ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Opp:Event", names,
                                     &device, &timing, &interprocess)) {
        return NULL;
    }
    if (timing && interprocess) {
        PyErr_SetString(PyExc_ValueError,
                        "CUDA has no events with both enable_timing=True and "
                        "interprocess=True");
        return NULL;
    }
    if (wm_python_cuda_device(device, "an event", &ordinal) < 0) {
        return NULL;
    }
    return event_new(type, ordinal,
                     timing         ? WM_EVENT_TIMED
                     : interprocess ? WM_EVENT_INTERPROCESS
                                    : WM_EVENT_ORDER);
}

static void
event_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    event_t *event = (event_t *)self;
    if (event->handle != NULL) {
        wm_event_destroy(event->device, event->handle);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
event_repr(PyObject *self)
{
    event_t *event = (event_t *)self;
    return PyUnicode_FromFormat("<warpmpi.Event %p on cuda:%d>",
                                (void *)event->handle, event->device);
}

static PyObject *
get_device(PyObject *self, void *unused)
{
    (void)unused;
    return wm_python_device(((event_t *)self)->device);
}

static PyObject *
get_cuda_event(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr((void *)((event_t *)self)->handle);
}

static PyObject *
get_enable_timing(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((event_t *)self)->kind == WM_EVENT_TIMED);
}

static PyObject *
get_interprocess(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((event_t *)self)->kind == WM_EVENT_INTERPROCESS);
}

static PyObject *
get_is_complete(PyObject *self, void *unused)
{
    (void)unused;
    event_t *event = (event_t *)self;
    bool done;
    wm_error_t err;
    if (wm_event_done(event->device, event->handle, &done, &err) < 0) {
        return wm_raise(&err);
    }
    return PyBool_FromLong(done);
}

static PyGetSetDef getset[] = {
    {"device", get_device, NULL, "The event's wm.Device.", NULL},
    {"cuda_event", get_cuda_event, NULL, "The CUevent handle as an int.",
     NULL},
    {"enable_timing", get_enable_timing, NULL,
     "Whether the event can be timed.", NULL},
    {"interprocess", get_interprocess, NULL,
     "Whether the event can be shared with other processes.", NULL},
    {"is_complete", get_is_complete, NULL,
     "Whether the work before the last record has ended; True for an event\n"
     "that was never recorded.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    record_doc,
    "record($self, /, stream)\n"
    "--\n"
    "\n"
    "Records the event after the work submitted so far to a stream, ours or\n"
    "anyone's. ValueError for a stream of another device.");

static PyObject *
event_record(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    PyObject *stream; // borrowed
    int device;
    CUstream handle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:record", names, &stream)
        || wm_stream_from_object(stream, "stream", &device, &handle) < 0
        || wm_python_event_record(self, device, handle) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
synchronize(event_t *event)
{
    wm_error_t err;
    int status;
    Py_BEGIN_ALLOW_THREADS status = wm_event_synchronize(event->device,
                                                         event->handle, &err);
    Py_END_ALLOW_THREADS if (status < 0)
    {
        wm_raise(&err);
    }
    return status < 0 ? -1 : 0;
}

PyDoc_STRVAR(synchronize_doc, "synchronize($self, /)\n"
                              "--\n"
                              "\n"
                              "Waits on the host for the work before the last "
                              "record. CudaError tells of\n"
                              "work that failed.");

static PyObject *
event_synchronize(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (synchronize((event_t *)self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    ipc_handle_doc,
    "ipc_handle($self, /)\n"
    "--\n"
    "\n"
    "64 bytes from which another process of this host makes its event with\n"
    "wm.event_from_ipc_handle. ValueError unless the event was made with\n"
    "interprocess=True.");

static PyObject *
event_ipc_handle(PyObject *self, PyObject *unused)
{
    (void)unused;
    event_t *event = (event_t *)self;
    CUipcEventHandle handle;
    wm_error_t err;
    if (event->kind != WM_EVENT_INTERPROCESS) {
        PyErr_SetString(PyExc_ValueError,
                        "make the event with interprocess=True to share it");
        return NULL;
    }
    if (wm_event_export(event->device, event->handle, &handle, &err) < 0) {
        return wm_raise(&err);
    }
    return PyBytes_FromStringAndSize(handle.reserved, sizeof(handle.reserved));
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef methods[] = {
    {"record", KEYWORDS(event_record), METH_VARARGS | METH_KEYWORDS,
     record_doc},
    {"synchronize", event_synchronize, METH_NOARGS, synchronize_doc},
    {"ipc_handle", event_ipc_handle, METH_NOARGS, ipc_handle_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    event_doc,
    "Event(device=None, enable_timing=False, interprocess=False)\n"
    "--\n"
    "\n"
    "An event of a CUDA device (None: the current one): recorded on a "
    "stream,\n"
    "waited for by streams of any device, or by the host. With "
    "`enable_timing`\n"
    "wm.get_event_elapsed_time measures between two of them; with\n"
    "`interprocess` other processes can open it. ValueError for both.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)event_doc},
    {Py_tp_new, event_tp_new},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_repr, event_repr},
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "warpmpi.Event",
    .basicsize = sizeof(event_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

PyDoc_STRVAR(synchronize_event_doc,
             "synchronize_event(event, /)\n"
             "--\n"
             "\n"
             "Waits on the host for the work before the event's last record.");

static PyObject *
module_synchronize_event(PyObject *module, PyObject *object)
{
    (void)module;
    event_t *event = event_checked(object, "event");
    if (event == NULL || synchronize(event) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    get_event_elapsed_time_doc,
    "get_event_elapsed_time(start_event, end_event, synchronize=True)\n"
    "--\n"
    "\n"
    "Milliseconds between two events made with enable_timing=True "
    "(ValueError\n"
    "for others). With `synchronize` the end is waited for first; otherwise "
    "it\n"
    "must have happened, or CudaError is raised.");

static PyObject *
module_get_event_elapsed_time(PyObject *module, PyObject *args,
                              PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"start_event", "end_event", "synchronize", NULL};
    PyObject *objects[2]; // borrowed
    int wait = 1;
    float ms;
    wm_error_t err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs,
                                     "OO|p:get_event_elapsed_time", names,
                                     &objects[0], &objects[1], &wait)) {
        return NULL;
    }
    event_t *start = event_checked(objects[0], names[0]);
    event_t *end = start ? event_checked(objects[1], names[1]) : NULL;
    if (end == NULL) {
        return NULL;
    }
    if (start->kind != WM_EVENT_TIMED || end->kind != WM_EVENT_TIMED) {
        PyErr_SetString(PyExc_ValueError,
                        "make both events with enable_timing=True to time "
                        "between them");
        return NULL;
    }
    if (wait && synchronize(end) < 0) {
        return NULL;
    }
    if (wm_event_elapsed(start->handle, end->handle, &ms, &err) < 0) {
        return wm_raise(&err);
    }
    return PyFloat_FromDouble(ms);
}

PyDoc_STRVAR(
    event_from_ipc_handle_doc,
    "event_from_ipc_handle(handle, device=None)\n"
    "--\n"
    "\n"
    "The event of another process of this host, from the 64 bytes of its\n"
    "ipc_handle(), for a CUDA device (None: the current one). ValueError for\n"
    "another length, CudaError where the driver cannot open it (its own\n"
    "process's, for one).");

static PyObject *
module_event_from_ipc_handle(PyObject *module, PyObject *args,
                             PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"handle", "device", NULL};
    PyTypeObject *type = wm_state()->event_type;
    Py_buffer bytes;
    PyObject *device = NULL; // borrowed
    CUipcEventHandle handle;
    wm_error_t err;
    int ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs,
                                     "y*|O:event_from_ipc_handle", names,
                                     &bytes, &device)) {
        return NULL;
    }
    bool fits = bytes.len == (Py_ssize_t)sizeof(handle);
    if (fits) {
        memcpy(&handle, bytes.buf, sizeof(handle));
    }
    PyBuffer_Release(&bytes);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "an event's handle has 64 bytes");
        return NULL;
    }
    if (wm_python_cuda_device(device, "an event", &ordinal) < 0) {
        return NULL;
    }
    event_t *event = (event_t *)type->tp_alloc(type, 0);
    if (event == NULL) {
        return NULL;
    }
    event->device = ordinal;
    event->kind = WM_EVENT_INTERPROCESS;
    if (wm_event_import(ordinal, &handle, &event->handle, &err) < 0) {
        Py_DECREF(event);
        return wm_raise(&err);
    }
    return (PyObject *)event;
}

static PyMethodDef functions[] = {
    {"synchronize_event", module_synchronize_event, METH_O,
     synchronize_event_doc},
    {"get_event_elapsed_time", KEYWORDS(module_get_event_elapsed_time),
     METH_VARARGS | METH_KEYWORDS, get_event_elapsed_time_doc},
    {"event_from_ipc_handle", KEYWORDS(module_event_from_ipc_handle),
     METH_VARARGS | METH_KEYWORDS, event_from_ipc_handle_doc},
    {NULL, NULL, 0, NULL},
};

int
wm_python_add_event(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL) {
        return -1;
    }
    wm_state()->event_type = (PyTypeObject *)type;
    if (PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
