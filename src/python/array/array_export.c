// SPDX-License-Identifier: BSD-3-Clause
// Arrays as seen by other libraries: the CUDA and NumPy array interfaces, the
// buffer protocol.
#include "python/array/py_array.h"
#include "python/device/py_device.h"

// One stream for each device that stands for pending work in interfaces: to
// synchronise with it is to wait for the work that it was last ordered behind.
static CUstream export_streams[WM_MAX_DEVICES];

static int
export_stream_of(int device, CUstream *stream, wm_error_t *err)
{
    if (export_streams[device] == NULL) {
        CUstream made;
        int status = wm_stream_create(device, &made, err);
        if (status < 0)
            return status;
        // Another thread may have run, if a tool in the driver released the
        // GIL.
        if (export_streams[device] == NULL)
            export_streams[device] = made;
        else
            wm_stream_destroy(device, made);
    }
    *stream = export_streams[device];
    return 0;
}

// Waits for the whole device: work of other libraries has no known stream.
static int
wait_for_others(const wm_producer_t *producer)
{
    int status;
    wm_error_t err;
    WM_PY_UNLOCKED(status = wm_producer_wait(producer, true, &err));
    return wm_py_after_wait(status, &err);
}

int
wm_py_array_export_stream(const wm_array_t *array, CUstream *stream)
{
    bool idle;
    wm_error_t err;
    wm_producer_t producer;
    wm_order_t *order = array->storage->order;
    int device = array->storage->memory.device;
    wm_array_producer(array, &producer);
    *stream = NULL;
    if (producer.kind == WM_PRODUCER_DEVICE)
        return wait_for_others(&producer);
    int status = wm_order_idle(order, true, &idle, &err);
    if (status == 0 && !idle) {
        status = export_stream_of(device, stream, &err);
        if (status == 0)
            status = wm_order_before(order, true, device, *stream, 0, &err);
    }
    return wm_py_result(status, &err);
}

static PyObject *
interface_dict(PyObject *self, bool with_stream, CUstream stream)
{
    const wm_array_t *array = wm_py_array_of(self);
    const char *typestr = wm_dtype_info(array->dtype)->typestr;
    PyObject *shape = NULL, *strides = NULL, *named = NULL, *dict = NULL;
    void *data = wm_array_count(array) > 0 ? array->data : NULL;
    shape = PyObject_GetAttrString(self, "shape");
    if (wm_array_is_contiguous(array))
        strides = Py_NewRef(Py_None);
    else
        strides = PyObject_GetAttrString(self, "strides");
    named = stream != NULL ? PyLong_FromVoidPtr(stream) : Py_NewRef(Py_None);
    PyObject *address = PyLong_FromVoidPtr(data);
    if (shape == NULL || strides == NULL || named == NULL || address == NULL)
        goto done;
    dict = Py_BuildValue("{s:O,s:s,s:(OO),s:O,s:i}", "shape", shape, "typestr",
                         typestr, "data", address,
                         array->readonly ? Py_True : Py_False, "strides",
                         strides, "version", 3);
    if (dict != NULL && with_stream
        && PyDict_SetItemString(dict, "stream", named) < 0)
        Py_CLEAR(dict);
done:
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(named);
    Py_XDECREF(address);
    return dict;
}

// Raises AttributeError, since other libraries use hasattr() to find out
// whether an array is on a GPU.
static PyObject *
cannot_say(const char *interface, wm_dtype_t dtype, const char *cure)
{
    return PyErr_Format(PyExc_AttributeError,
                        "%s has no element type %s: use %s", interface,
                        wm_dtype_info(dtype)->name, cure);
}

PyObject *
wm_py_array_cuda_interface(PyObject *self, void *Py_UNUSED(unused))
{
    CUstream stream;
    const wm_array_t *array = wm_py_array_of(self);
    if (array->storage->memory.device < 0)
        return PyErr_Format(
            PyExc_AttributeError,
            "__cuda_array_interface__: this array is on the host");
    if (wm_dtype_info(array->dtype)->typestr == NULL)
        return cannot_say("__cuda_array_interface__", array->dtype, "DLPack");
    if (wm_py_array_export_stream(array, &stream) < 0)
        return NULL;
    wm_storage_give_away(array->storage);
    return interface_dict(self, true, stream);
}

PyObject *
wm_py_array_host_interface(PyObject *self, void *Py_UNUSED(unused))
{
    const wm_array_t *array = wm_py_array_of(self);
    if (array->storage->memory.device >= 0)
        return PyErr_Format(PyExc_AttributeError,
                            "__array_interface__: this array is on a GPU, use "
                            ".numpy() for a copy");
    if (wm_dtype_info(array->dtype)->typestr == NULL)
        return cannot_say("__array_interface__", array->dtype, ".numpy()");
    if (wm_py_array_wait_nogil(array) < 0)
        return NULL;
    return interface_dict(self, false, NULL);
}

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "a 64-bit platform");

// Returns why the requested buffer is not available, or NULL.
static const char *
refusal(const wm_array_t *array, int flags)
{
    if (array->storage->memory.device >= 0)
        return "this array is on a GPU: use .numpy() for a copy on the host";
    if ((flags & PyBUF_WRITABLE) != 0 && array->readonly)
        return "the array is read-only";
    bool c = wm_array_is_contiguous(array);
    bool f = wm_array_is_f_contiguous(array);
    bool strided = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    if ((!strided && !c)
        || ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !c)
        || ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !f)
        || ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !c
            && !f))
        return "the array is not contiguous as asked for: use .copy()";
    return NULL;
}

// The buffer points to the array's shape, which never changes.
int
wm_py_array_get_buffer(PyObject *self, Py_buffer *buffer, int flags)
{
    wm_array_t *array = wm_py_array_of(self);
    const wm_dtype_info_t *info = wm_dtype_info(array->dtype);
    const char *why = refusal(array, flags);
    buffer->obj = NULL;
    if (array->storage->memory.device < 0 && info->format == NULL)
        return wm_py_fail(PyExc_BufferError,
                          "the buffer protocol has no %s: use .numpy()",
                          info->name);
    if (why != NULL)
        return wm_py_fail(PyExc_BufferError, "%s", why);
    if (wm_py_array_wait_nogil(array) < 0)
        return -1;
    bool strided = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    bool shaped = (flags & PyBUF_ND) == PyBUF_ND;
    bool typed = (flags & PyBUF_FORMAT) == PyBUF_FORMAT;
    buffer->buf = array->data;
    buffer->len = (Py_ssize_t)wm_array_nbytes(array);
    buffer->readonly = array->readonly;
    buffer->itemsize = info->itemsize;
    buffer->format = typed ? (char *)info->format : NULL;
    buffer->ndim = array->ndim;
    buffer->shape = shaped ? (Py_ssize_t *)array->shape : NULL;
    buffer->strides = strided ? (Py_ssize_t *)array->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    buffer->obj = Py_NewRef(self);
    return 0;
}

void
wm_py_array_release_buffer(PyObject *Py_UNUSED(self), Py_buffer *buffer)
{
    (void)buffer;
}
