// SPDX-License-Identifier: BSD-3-Clause
// wm.Stream, and the streams that foreign objects and handles mean.
#include "python/device/py_stream.h"

#include "array/array.h"
#include "python/device/py_device.h"

typedef struct {
    PyObject_HEAD
    int device;
    CUstream handle;
    bool owned;
    PyObject *owner; // owner of a foreign stream, or NULL
} stream_t;

#define NO_ADDRESS 4096 // no stream has a smaller one

// Finds the device of a default stream, whose handle has none: that of the
// object, else of the CUDA context current on this thread, else our own
// current one.
static int
device_of_default_stream(int told, int *device)
{
    int found = told >= 0 ? told : wm_device_current();
    if (found < 0)
        return wm_py_cuda_device(NULL, "a stream", device);
    *device = found;
    return 0;
}

// Finds a stream and its device from a handle. `told`: the device of a default
// stream, or -1.
static int
stream_of_handle(CUstream handle, int told, const char *argument, int *device,
                 CUstream *stream)
{
    wm_error_t err;
    bool by_default = wm_stream_is_default(handle);
    if (by_default ? device_of_default_stream(told, &told) < 0
                   : wm_stream_device(handle, &told, &err) < 0)
        return by_default ? -1 : wm_py_raise_of(argument, &err);
    *device = told;
    *stream = handle != NULL ? handle : CU_STREAM_LEGACY;
    return 0;
}

// Does so for an int. Refuses what may be the ordinal of a device, unless
// `defaults`: then CUDA's numbers of the default streams are meant.
static int
stream_of_number(PyObject *number, const char *argument, bool defaults,
                 int *device, CUstream *stream)
{
    int overflow;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    CUstream handle = (CUstream)(uintptr_t)value;
    if (overflow == 0
        && (value >= NO_ADDRESS || (defaults && wm_stream_is_default(handle))))
        return stream_of_handle(handle, -1, argument, device, stream);
    return wm_py_fail(
        PyExc_ValueError,
        "%s: %R is no stream: give a stream, such as wm.Stream() or "
        "cupy.cuda.Stream(); wm.Stream(cuda_stream=0) is the default stream. "
        "The GPU is that of the stream, and wm.set_device chooses it",
        argument, number);
}

static int
stream_of_foreign(PyObject *object, const char *argument, int *device,
                  CUstream *stream)
{
    int told;
    PyObject *number; // borrowed
    PyObject *found = wm_py_cold("warpmpi._foreign", "stream_of", "(Os)",
                                 object, argument);
    if (found == NULL || !PyArg_ParseTuple(found, "Oi", &number, &told)) {
        Py_XDECREF(found);
        return -1;
    }
    CUstream handle = PyLong_AsVoidPtr(number);
    Py_DECREF(found);
    return handle == NULL && PyErr_Occurred()
               ? -1
               : stream_of_handle(handle, told, argument, device, stream);
}

int
wm_py_stream_from_object(PyObject *object, const char *argument, int *device,
                         CUstream *stream)
{
    if (PyLong_CheckExact(object))
        return stream_of_number(object, argument, false, device, stream);
    if (!Py_IS_TYPE(object, wm_py_state->stream_type))
        return stream_of_foreign(object, argument, device, stream);
    *device = ((stream_t *)object)->device;
    *stream = ((stream_t *)object)->handle;
    return 0;
}

static int
stream_open(stream_t *self)
{
    wm_error_t err;
    int status;
    WM_PY_UNLOCKED(status = wm_stream_create(
                       self->device, &self->handle,
                       &err)); // the first use of a device takes long
    self->owned = status == 0;
    return wm_py_result(status, &err);
}

// Makes a view of the stream `given`, on `device` (or NULL: its own).
static int
stream_view(stream_t *self, PyObject *given, PyObject *device)
{
    int own = -1;
    if (given == Py_None) {
        self->handle = CU_STREAM_LEGACY;
        return wm_py_cuda_device(device, "a stream", &self->device);
    }
    if ((PyLong_CheckExact(given)
             ? stream_of_number(given, "cuda_stream", true, &own,
                                &self->handle)
             : wm_py_stream_from_object(given, "cuda_stream", &own,
                                        &self->handle))
        < 0)
        return -1;
    self->device = own;
    if (device != NULL && device != Py_None) {
        if (wm_py_cuda_device(device, "a stream", &self->device) < 0)
            return -1;
        bool anywhere = wm_stream_is_default(self->handle);
        if (own != self->device && !(anywhere && PyLong_Check(given)))
            return wm_py_fail(PyExc_ValueError,
                              "cuda_stream belongs to cuda:%d, not cuda:%d",
                              own, self->device);
    }
    if (!PyLong_Check(given))
        self->owner = Py_NewRef(given);
    return 0;
}

static PyObject *
stream_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "cuda_stream", NULL};
    PyObject *device = NULL, *given = NULL; // borrowed
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:Stream", names,
                                     &device, &given))
        return NULL;
    stream_t *self = (stream_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    int status;
    if (given != NULL) {
        status = stream_view(self, given, device);
    }
    else {
        status = wm_py_cuda_device(device, "a stream", &self->device);
        if (status == 0)
            status = stream_open(self);
    }
    if (status < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int
stream_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((stream_t *)self)->owner);
    return 0;
}

static int
stream_clear(PyObject *self)
{
    Py_CLEAR(((stream_t *)self)->owner);
    return 0;
}

static void
stream_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    stream_t *stream = (stream_t *)self;
    PyObject_GC_UnTrack(self);
    if (stream->owned) {
        // Returns at once; the driver destroys the stream after its work.
        wm_stream_destroy(stream->device, stream->handle);
    }
    (void)stream_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
get_device(PyObject *self, void *Py_UNUSED(unused))
{
    return wm_py_device(((stream_t *)self)->device);
}

static PyObject *
get_cuda_stream(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr((void *)((stream_t *)self)->handle);
}

static PyObject *
get_is_complete(PyObject *self, void *Py_UNUSED(unused))
{
    stream_t *stream = (stream_t *)self;
    bool idle;
    wm_error_t err;
    if (wm_stream_idle(stream->device, stream->handle, &idle, &err) < 0)
        return wm_py_raise(&err);
    return PyBool_FromLong(idle);
}

static PyGetSetDef getset[] = {
    {"device", get_device, NULL, "The stream's wm.Device.", NULL},
    {"cuda_stream", get_cuda_stream, NULL,
     "The CUstream handle as an int; 1 is the legacy default stream.", NULL},
    {"is_complete", get_is_complete, NULL,
     "True if all work submitted so far has ended. False while the\n"
     "stream is being captured.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(cuda_stream_doc, "__cuda_stream__($self, /)\n--\n\n"
                              "The CUDA stream protocol: (0, handle).");

static PyObject *
stream_cuda_stream(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("iN", 0, get_cuda_stream(self, NULL));
}

PyDoc_STRVAR(
    synchronize_doc,
    "synchronize($self, /)\n--\n\n"
    "Wait on the host for all work submitted so far. Raises CudaError\n"
    "if work has failed. Also raises the errors of collectives on a\n"
    "stream, of any communicator, as the next collective would.");

static PyObject *
stream_synchronize(PyObject *self, PyObject *Py_UNUSED(unused))
{
    stream_t *stream = (stream_t *)self;
    wm_error_t err;
    int status;
    WM_PY_UNLOCKED(
        status = wm_stream_synchronize(stream->device, stream->handle, &err);
        wm_storage_free_kept());
    return wm_py_after_wait(status, &err) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"__cuda_stream__", stream_cuda_stream, METH_NOARGS, cuda_stream_doc},
    {"synchronize", stream_synchronize, METH_NOARGS, synchronize_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    stream_doc,
    "Stream(device=None, *, cuda_stream=...)\n--\n\n"
    "A new non-blocking stream of a CUDA device (None: the current\n"
    "one). With `cuda_stream`, a view of a stream that another\n"
    "library owns: an object with __cuda_stream__, a stream of CuPy,\n"
    "Torch, Warp or Numba (which the view keeps alive), a handle as\n"
    "an int, or None for the default stream.\n\n"
    "Raises ValueError if the device is the CPU or not the stream's\n"
    "device.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)stream_doc},   {Py_tp_new, stream_tp_new},
    {Py_tp_traverse, stream_traverse}, {Py_tp_clear, stream_clear},
    {Py_tp_dealloc, stream_dealloc},   {Py_tp_getset, getset},
    {Py_tp_methods, methods},          {0, NULL},
};

PyType_Spec wm_py_stream_spec = {
    .name = "warpmpi.Stream",
    .basicsize = sizeof(stream_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
