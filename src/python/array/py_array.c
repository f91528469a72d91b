// SPDX-License-Identifier: BSD-3-Clause
// The type wm.Array: its slots and attributes. Its other methods are in
// warpmpi/_array_methods.py.
#include "python/array/py_array.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "comm/diagnostics/fault.h"
#include "python/view/py_dtype.h"
#include "python/view/view_parts.h"

wm_array_t *
wm_py_array_of(PyObject *object)
{
    return &((wm_array_object_t *)object)->array;
}

// Returns true if the memory belongs to another object, which the storage
// keeps.
static bool
is_foreign(const wm_array_t *array)
{
    const wm_storage_t *storage = array->storage;
    return storage->owner != NULL
           && wm_py_view_object(storage->release, storage->owner) != NULL;
}

PyObject *
wm_py_array_object(wm_array_t *array)
{
    wm_array_object_t *self = PyObject_GC_New(wm_array_object_t,
                                              wm_py_state->array_type);
    if (self == NULL) {
        wm_array_clear(array);
        return NULL;
    }
    self->weakrefs = NULL;
    self->base = NULL;
    wm_array_copy_header(&self->array, array);
    if (wm_memory_on_device(&array->storage->memory))
        wm_fault_watch();
    if (is_foreign(array)) // without foreign memory no cycle is possible
        PyObject_GC_Track(self);
    return (PyObject *)self;
}

PyObject *
wm_py_array_view_object(PyObject *of, wm_array_t *array)
{
    wm_array_object_t *self = (wm_array_object_t *)wm_py_array_object(array);
    if (self != NULL && is_foreign(&self->array)) {
        PyObject *base = ((wm_array_object_t *)of)->base;
        self->base = Py_NewRef(base != NULL ? base : of);
        wm_storage_release(self->array.storage);
    }
    return (PyObject *)self;
}

void
wm_py_array_keep_object(PyObject *object, wm_view_t *view)
{
    if (view->array.storage == NULL || !is_foreign(&view->array))
        return;
    wm_py_view_own_object(view, object);
    wm_storage_release(view->array.storage);
    view->array.storage = NULL;
}

void
wm_py_array_begin_view(PyObject *object, wm_array_t *view)
{
    const wm_array_t *array = wm_py_array_of(object);
    memcpy(view, array, offsetof(wm_array_t, shape));
    wm_storage_retain(view->storage);
}

// The GIL is released during a wait for work on memory that is freed at once.
static void
array_dealloc(PyObject *self)
{
    wm_array_object_t *object = (wm_array_object_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (object->weakrefs != NULL)
        PyObject_ClearWeakRefs(self);
    // The end of a foreign owner must not swallow a pending exception.
    PyObject *raised = PyErr_GetRaisedException();
    if (object->base == NULL)
        wm_array_clear(&object->array);
    Py_CLEAR(object->base);
    PyErr_SetRaisedException(raised);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// Visits the memory's owner if this array alone keeps the storage. There is no
// clear slot: as with a tuple, another object of the cycle is cleared.
static int
array_traverse(PyObject *self, visitproc visit, void *arg)
{
    wm_array_object_t *object = (wm_array_object_t *)self;
    wm_storage_t *storage = object->array.storage;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(object->base);
    if (object->base == NULL && atomic_load(&storage->references) == 1)
        Py_VISIT(wm_py_view_object(storage->release, storage->owner));
    return 0;
}

PyObject *
wm_py_array_tuple(const int64_t *values, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

static PyObject *
get_shape(PyObject *self, void *Py_UNUSED(unused))
{
    const wm_array_t *array = wm_py_array_of(self);
    return wm_py_array_tuple(array->shape, array->ndim);
}

static PyObject *
get_strides(PyObject *self, void *Py_UNUSED(unused))
{
    const wm_array_t *array = wm_py_array_of(self);
    return wm_py_array_tuple(array->strides, array->ndim);
}

static PyObject *
get_dtype(PyObject *self, void *Py_UNUSED(unused))
{
    return wm_py_dtype(wm_py_array_of(self)->dtype);
}

static PyObject *
get_size(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLongLong(wm_array_count(wm_py_array_of(self)));
}

static PyObject *
get_nbytes(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(wm_array_nbytes(wm_py_array_of(self)));
}

static PyObject *
get_itemsize(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(
        wm_dtype_info(wm_py_array_of(self)->dtype)->itemsize);
}

static PyObject *
get_device(PyObject *self, void *Py_UNUSED(unused))
{
    return wm_py_device(wm_py_array_of(self)->storage->memory.device);
}

// Marks the storage as given away: code that has the address can use the
// memory at any time.
static PyObject *
get_ptr(PyObject *self, void *Py_UNUSED(unused))
{
    const wm_array_t *array = wm_py_array_of(self);
    if (wm_py_array_wait_nogil(array) < 0)
        return NULL;
    wm_storage_give_away(array->storage);
    return PyLong_FromVoidPtr(array->data);
}

static PyObject *
get_is_contiguous(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_array_is_contiguous(wm_py_array_of(self)));
}

static PyObject *
get_pinned(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_py_array_of(self)->storage->memory.kind
                           == WM_MEMORY_PINNED);
}

static Py_ssize_t
array_length(PyObject *self)
{
    const wm_array_t *array = wm_py_array_of(self);
    if (array->ndim == 0)
        return wm_py_fail(PyExc_TypeError, "len() of a 0-d array");
    return (Py_ssize_t)array->shape[0];
}

static PyObject *
array_iter(PyObject *self)
{
    if (wm_py_array_of(self)->ndim == 0)
        return PyErr_Format(PyExc_TypeError, "iteration over a 0-d array");
    return PySeqIter_New(self);
}

static PyGetSetDef getters[] = {
    {"shape", get_shape, NULL, "The extents, a tuple of ints.", NULL},
    {"strides", get_strides, NULL,
     "Bytes from one element to the next in each dimension.", NULL},
    {"dtype", get_dtype, NULL, "The element type, a numpy.dtype.", NULL},
    {"size", get_size, NULL, "The number of elements.", NULL},
    {"nbytes", get_nbytes, NULL, "The bytes of all elements.", NULL},
    {"itemsize", get_itemsize, NULL, "The bytes of an element.", NULL},
    {"device", get_device, NULL, "The wm.Device whose memory it is.", NULL},
    {"ptr", get_ptr, NULL,
     "The address of the first element, an int. Reading it waits for\n"
     "our pending work. From then on we assume that other libraries\n"
     "write to the array, too.",
     NULL},
    {"is_contiguous", get_is_contiguous, NULL,
     "True if the elements are dense, in row-major order.", NULL},
    {"pinned", get_pinned, NULL,
     "True if the array is in page-locked host memory, which GPUs can\n"
     "access.",
     NULL},
    {"T", wm_py_array_transposed, NULL,
     "A view with the dimensions in reverse order.", NULL},
    {"__cuda_array_interface__", wm_py_array_cuda_interface, NULL,
     "CUDA array interface, version 3; AttributeError on the host.", NULL},
    {"__array_interface__", wm_py_array_host_interface, NULL,
     "NumPy's array interface, version 3; AttributeError on a GPU.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    WM_PY_KEYWORDS("to", wm_py_array_to),
    WM_PY_KEYWORDS("copy", wm_py_array_copy),
    WM_PY_KEYWORDS("assign", wm_py_array_assign),
    WM_PY_KEYWORDS("fill_", wm_py_array_fill),
    WM_PY_KEYWORDS("zero_", wm_py_array_zero),
    WM_PY_KEYWORDS("__dlpack__", wm_py_array_dlpack),
    WM_PY_ROW("__dlpack_device__", wm_py_array_dlpack_device, METH_NOARGS),
    {0},
};

static PyMemberDef members[] = {
    {"ndim", T_INT, offsetof(wm_array_object_t, array.ndim), READONLY,
     "The number of dimensions."},
    {"readonly", T_BOOL, offsetof(wm_array_object_t, array.readonly), READONLY,
     "True if the array is read-only."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(wm_array_object_t, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    array_doc,
    "A strided array in the memory of a GPU or of the host.\n\n"
    "Made by wm.empty, zeros, ones, full, array, from_numpy, asarray\n"
    "and from_dlpack. The array is a container for communication. For\n"
    "computing, use CuPy, Warp, PyTorch, JAX or NumPy, which access\n"
    "the same memory by __cuda_array_interface__, __dlpack__ or the\n"
    "buffer protocol.\n\n"
    "Indexing by ints, slices, ... and None gives views. Operations\n"
    "on one array are ordered among themselves, on any stream or\n"
    "device. They are complete when they return, unless\n"
    "blocking=False or a stream is given.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (char *)array_doc},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_traverse, array_traverse},
    {Py_tp_iter, array_iter},
    {Py_tp_getset, getters},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_mp_length, array_length},
    {Py_mp_subscript, wm_py_array_subscript},
    {Py_mp_ass_subscript, wm_py_array_ass_subscript},
    {Py_sq_length, array_length},
    {Py_sq_item, wm_py_array_item_at},
    {Py_bf_getbuffer, wm_py_array_get_buffer},
    {Py_bf_releasebuffer, wm_py_array_release_buffer},
    {0, NULL},
};

PyType_Spec wm_py_array_spec = {
    .name = "warpmpi.Array",
    .basicsize = sizeof(wm_array_object_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
