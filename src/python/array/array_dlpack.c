// SPDX-License-Identifier: BSD-3-Clause
// DLPack export: __dlpack__ with all its arguments, and __dlpack_device__.
#include <stdlib.h>

#include "python/array/py_array.h"
#include "python/view/dlpack.h"

// A tensor with all the data it points to. Its deleter frees it, on any
// thread.
typedef struct {
    union {
        wm_dl_versioned_t versioned;
        wm_dl_managed_t legacy;
    } managed;
    wm_storage_t *storage;
    int64_t shape[WM_MAX_NDIM];
    int64_t strides[WM_MAX_NDIM]; // in elements
} export_t;

static void
export_free(export_t *export)
{
    wm_storage_release(export->storage);
    free(export);
}

static void
delete_versioned(wm_dl_versioned_t *tensor)
{
    export_free(tensor->context);
}

static void
delete_legacy(wm_dl_managed_t *tensor)
{
    export_free(tensor->context);
}

static wm_dl_device_t
device_of(const wm_array_t *array)
{
    int ordinal = array->storage->memory.device;
    // Pinned memory is exported as the host's: some consumers do not take it.
    return ordinal >= 0 ? (wm_dl_device_t){WM_DL_CUDA, ordinal}
                        : (wm_dl_device_t){WM_DL_CPU, 0};
}

static int
tensor_init(export_t *export, const wm_array_t *array, wm_dl_tensor_t *tensor)
{
    const wm_dtype_info_t *info = wm_dtype_info(array->dtype);
    int64_t itemsize = info->itemsize;
    for (int i = 0; i < array->ndim; i++) {
        if (array->strides[i] % itemsize != 0)
            return wm_py_fail(PyExc_BufferError,
                              "__dlpack__: DLPack has no strides that are not "
                              "multiples of the element size: use .copy()");
        export->shape[i] = array->shape[i];
        export->strides[i] = array->strides[i] / itemsize;
    }
    tensor->data = wm_array_count(array) > 0 ? array->data : NULL;
    tensor->device = device_of(array);
    tensor->ndim = array->ndim;
    tensor->dtype.code = info->dlpack_code;
    tensor->dtype.bits = info->dlpack_bits;
    tensor->dtype.lanes = 1;
    tensor->shape = export->shape;
    tensor->strides = export->strides;
    tensor->byte_offset = 0;
    return 0;
}

// Frees the tensor of a capsule that nobody consumed.
static void
free_versioned_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static void
free_legacy_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_legacy(PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *
capsule_of(const wm_array_t *array, bool versioned, bool copied)
{
    export_t *export = calloc(1, sizeof(*export));
    if (export == NULL)
        return PyErr_NoMemory();
    wm_dl_versioned_t *modern = &export->managed.versioned;
    wm_dl_managed_t *legacy = &export->managed.legacy;
    export->storage = wm_storage_retain(array->storage);
    PyObject *capsule = NULL;
    if (versioned && tensor_init(export, array, &modern->tensor) == 0) {
        modern->version = (wm_dl_version_t){WM_DL_MAJOR, WM_DL_MINOR};
        modern->context = export;
        modern->deleter = delete_versioned;
        modern->flags = (array->readonly ? WM_DL_READ_ONLY : 0)
                        | (copied ? WM_DL_COPIED : 0);
        capsule = PyCapsule_New(modern, "dltensor_versioned",
                                free_versioned_capsule);
    }
    else if (!versioned && tensor_init(export, array, &legacy->tensor) == 0) {
        legacy->context = export;
        legacy->deleter = delete_legacy;
        capsule = PyCapsule_New(legacy, "dltensor", free_legacy_capsule);
    }
    if (capsule == NULL)
        export_free(export);
    return capsule;
}

// Makes the consumer's stream wait for all pending work. -1: the consumer
// wants no ordering.
static int
order_consumer(const wm_array_t *array, PyObject *object)
{
    int device = array->storage->memory.device;
    long long number = 1; // the legacy default stream
    if (object != Py_None) {
        number = PyLong_AsLongLong(object);
        if (number == -1 && PyErr_Occurred())
            return -1;
    }
    if (number == -1)
        return 0;
    if (device < 0 && object != Py_None)
        return wm_py_fail(
            PyExc_ValueError,
            "stream: an array in host memory has no stream: give None");
    if (device < 0)
        return wm_py_array_wait_nogil(array);
    if (number <= 0)
        return wm_py_fail(PyExc_ValueError,
                          "stream: %lld is not -1, 1 (the legacy default "
                          "stream), 2 (the per-thread one) or a handle",
                          number);
    CUstream ours;
    CUstream stream = (CUstream)(uintptr_t)number;
    wm_error_t err;
    if (wm_py_array_export_stream(array, &ours) < 0)
        return -1;
    int status = 0;
    if (ours != NULL)
        status = wm_stream_follow(device, stream, device, ours, &err);
    return wm_py_result(status, &err);
}

// Sets *versioned to true if the consumer knows version 1 or later.
static int
parse_max_version(PyObject *object, bool *versioned)
{
    *versioned = false;
    if (object == Py_None)
        return 0;
    long major, minor;
    if (!PyTuple_Check(object)
        || !PyArg_ParseTuple(object, "ll", &major, &minor)) {
        PyErr_Clear();
        return wm_py_fail(PyExc_TypeError,
                          "max_version: expected None or (major, minor)");
    }
    *versioned = major >= 1;
    return 0;
}

// Writes the ordinal of the device that the consumer wants the memory on;
// None: the device of the array.
static int
parse_dl_device(PyObject *object, const wm_array_t *array, int *ordinal)
{
    int type, id;
    *ordinal = array->storage->memory.device;
    if (object == Py_None)
        return 0;
    PyObject *pair = PySequence_Tuple(object);
    if (pair == NULL || !PyArg_ParseTuple(pair, "ii", &type, &id)) {
        Py_XDECREF(pair);
        PyErr_Clear();
        return wm_py_fail(PyExc_TypeError,
                          "dl_device: expected None or (type, id)");
    }
    Py_DECREF(pair);
    if (type == WM_DL_CUDA)
        *ordinal = id;
    else if (type == WM_DL_CPU
             || (type == WM_DL_CUDA_HOST
                 && array->storage->memory.kind == WM_MEMORY_PINNED))
        *ordinal = -1;
    else
        return wm_py_fail(PyExc_BufferError,
                          "dl_device: device type %d is not supported", type);
    return 0;
}

// The consumer of host memory uses the memory on the host.
static void
give_away(const wm_array_t *array)
{
    if (array->storage->memory.device >= 0)
        wm_storage_give_away(array->storage);
}

static PyObject *
export_copy(PyObject *self, int ordinal, bool versioned)
{
    wm_view_t view;
    if (wm_py_view_parse(self, false, "array", &view) < 0)
        return NULL;
    PyObject *copy = wm_py_array_copy_of(&view, ordinal, false, true);
    wm_py_view_release(&view);
    if (copy == NULL)
        return NULL;
    give_away(wm_py_array_of(copy));
    PyObject *capsule = capsule_of(wm_py_array_of(copy), versioned, true);
    Py_DECREF(copy);
    return capsule;
}

const char wm_py_array_dlpack_doc[] = PyDoc_STR(
    "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, "
    "copy=None)\n--\n\n"
    "Return a DLPack capsule over the array's memory, as in the\n"
    "Python array API standard. The capsule has DLPack version 1 if\n"
    "max_version allows it, else version 0.\n\n"
    "stream: the consumer's stream, which waits for pending work\n"
    "(None or 1: the legacy default stream, -1: no waiting).\n"
    "dl_device: for another (type, id) the capsule holds a copy,\n"
    "unless copy=False.\n\n"
    "Raises BufferError if the array cannot be exported like this,\n"
    "ValueError for a stream that does not exist.");

PyObject *
wm_py_array_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy",
                            NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None;
    PyObject *copying = Py_None;
    const wm_array_t *array = wm_py_array_of(self);
    bool versioned;
    int ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names,
                                     &stream, &version, &device, &copying)
        || parse_max_version(version, &versioned) < 0
        || parse_dl_device(device, array, &ordinal) < 0)
        return NULL;
    bool elsewhere = ordinal != array->storage->memory.device;
    int copy = copying == Py_None ? elsewhere : PyObject_IsTrue(copying);
    if (copy < 0)
        return NULL;
    if (elsewhere && !copy)
        return PyErr_Format(PyExc_BufferError,
                            "copy: an array on another device needs a copy: "
                            "give copy=True or None");
    if (copy)
        return export_copy(self, ordinal, versioned);
    if (array->readonly && !versioned)
        return PyErr_Format(PyExc_BufferError,
                            "a read-only array can be exported only by DLPack "
                            "1 (max_version=(1, 0)): use that, or a .copy()");
    if (order_consumer(array, stream) < 0)
        return NULL;
    give_away(array);
    return capsule_of(array, versioned, false);
}

const char wm_py_array_dlpack_device_doc[] = PyDoc_STR(
    "__dlpack_device__($self)\n--\n\n"
    "Return the DLPack device as (type, id): (1, 0) for the host, (2,\n"
    "n) for cuda:n.");

PyObject *
wm_py_array_dlpack_device(PyObject *self, PyObject *Py_UNUSED(unused))
{
    wm_dl_device_t device = device_of(wm_py_array_of(self));
    return Py_BuildValue("ii", (int)device.type, (int)device.id);
}
