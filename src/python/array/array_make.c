// SPDX-License-Identifier: BSD-3-Clause
// Makers of arrays: empty, zeros, full, asarray, and the functions that the
// makers of warpmpi/_arrays.py use.
#include <string.h>

#include "array/copy.h"
#include "python/array/py_array.h"
#include "python/view/py_dtype.h"
#include "python/view/view_parts.h"

// Parses the device of a new array. Pinned memory is on the host, also if no
// device is named.
static int
parse_device(PyObject *object, int pinned, int *device)
{
    if (pinned && (object == NULL || object == Py_None)) {
        *device = -1;
        return 0;
    }
    if (wm_py_device_from_object(object != NULL ? object : Py_None, device)
        < 0)
        return -1;
    if (pinned && *device >= 0)
        return wm_py_fail(PyExc_ValueError,
                          "pinned: memory of cuda:%d cannot be pinned, only "
                          "device=\"cpu\" can",
                          *device);
    return 0;
}

static int
parse_dtype(PyObject *object, wm_dtype_t *dtype)
{
    if (object == NULL || object == Py_None) {
        *dtype = WM_FLOAT64;
        return 0;
    }
    return wm_py_dtype_from_object(object, dtype);
}

static int
make_empty(PyObject *shape, wm_dtype_t dtype, PyObject *device_object,
           int pinned, wm_array_t *array)
{
    int device, ndim;
    int64_t extents[WM_MAX_NDIM];
    if (parse_device(device_object, pinned, &device) < 0
        || wm_py_array_parse_shape(shape, "shape", &ndim, extents) < 0)
        return -1;
    return wm_py_array_new_nogil(device, pinned, dtype, ndim, extents, array);
}

// Sets the new array's elements to a value of its type. Takes over the array.
static PyObject *
filled(wm_array_t *array, const void *value, bool blocking)
{
    int status;
    wm_error_t err;
    WM_PY_UNLOCKED(status = wm_fill(array, value, NULL, blocking, &err));
    if (status < 0) {
        wm_array_clear(array);
        return wm_py_raise(&err);
    }
    return wm_py_array_object(array);
}

#define MAKER_ARGS                                                            \
    "shape: an int or a tuple of ints. dtype: float64 unless given. "         \
    "device:\n"                                                               \
    "wm.get_device() unless given. pinned=True: page-locked host memory,\n"   \
    "plain without a GPU."
#define MAKER_ERRORS                                                          \
    "Raises ValueError for a bad shape or device, TypeError for a bad "       \
    "dtype,\n"                                                                \
    "wm.OutOfMemoryError."

PyDoc_STRVAR(empty_doc, "empty(shape, dtype=None, device=None, pinned=False)\n"
                        "--\n"
                        "\n"
                        "Return a new array, whose elements are undefined.\n"
                        "\n" MAKER_ARGS "\n" MAKER_ERRORS);

static PyObject *
empty(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shape", "dtype", "device", "pinned", NULL};
    PyObject *shape, *type = NULL, *device = NULL;
    int pinned = 0;
    wm_dtype_t dtype;
    wm_array_t array;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOp:empty", names,
                                     &shape, &type, &device, &pinned)
        || parse_dtype(type, &dtype) < 0
        || make_empty(shape, dtype, device, pinned, &array) < 0)
        return NULL;
    return wm_py_array_object(&array);
}

PyDoc_STRVAR(
    zeros_doc,
    "zeros(shape, dtype=None, device=None, pinned=False, blocking=True)\n"
    "--\n"
    "\n"
    "Return a new array of zeros.\n"
    "\n" MAKER_ARGS "\n"
    "blocking=False: the array may not be complete when the call returns;\n"
    "warpmpi orders later operations on it after the fill.\n" MAKER_ERRORS);

static PyObject *
zeros(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shape",  "dtype",    "device",
                            "pinned", "blocking", NULL};
    static const char zero[16];
    PyObject *shape, *type = NULL, *device = NULL;
    int pinned = 0, blocking = 1;
    wm_dtype_t dtype;
    wm_array_t array;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOpp:zeros", names,
                                     &shape, &type, &device, &pinned,
                                     &blocking)
        || parse_dtype(type, &dtype) < 0
        || make_empty(shape, dtype, device, pinned, &array) < 0)
        return NULL;
    return filled(&array, zero, blocking);
}

// Parses a fill value as one element. `type` NULL or None: the type that NumPy
// gives the value.
static int
parse_value(PyObject *value, PyObject *type, wm_dtype_t *dtype, char *bytes)
{
    wm_view_t view;
    bool given = type != NULL && type != Py_None;
    if ((given && wm_py_dtype_from_object(type, dtype) < 0)
        || wm_py_array_view_data(value, given ? dtype : NULL, "fill_value",
                                 &view)
               < 0)
        return -1;
    int status = 0;
    *dtype = view.array.dtype;
    if (wm_array_count(&view.array) != 1 || view.memory.device >= 0)
        status = wm_py_fail(PyExc_ValueError,
                            "fill_value: give one scalar on the host");
    else
        memcpy(bytes, view.array.data, wm_dtype_info(*dtype)->itemsize);
    wm_py_view_release(&view);
    return status;
}

PyDoc_STRVAR(
    full_doc,
    "full(shape, fill_value, dtype=None, device=None, pinned=False, "
    "blocking=True)\n--\n\n"
    "Return a new array with every element set to the value.\n\n"
    "shape: an int or a tuple of ints. dtype: NumPy's type of the\n"
    "value unless given. device: wm.get_device() unless given.\n"
    "pinned=True: page-locked host memory, plain without a GPU.\n"
    "blocking=False: the array may not be complete when the call returns;\n"
    "warpmpi orders later operations on it after the fill.\n" MAKER_ERRORS);

static PyObject *
full(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shape",  "fill_value", "dtype", "device",
                            "pinned", "blocking",   NULL};
    PyObject *shape, *value, *type = NULL, *device = NULL;
    int pinned = 0, blocking = 1;
    char bytes[16];
    wm_dtype_t dtype;
    wm_array_t array;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOpp:full", names,
                                     &shape, &value, &type, &device, &pinned,
                                     &blocking)
        || parse_value(value, type, &dtype, bytes) < 0
        || make_empty(shape, dtype, device, pinned, &array) < 0)
        return NULL;
    return filled(&array, bytes, blocking);
}

static PyObject *
copied_data(PyObject *data, PyObject *type, PyObject *device_object,
            int pinned, int blocking, const char *argument)
{
    wm_view_t view;
    wm_dtype_t dtype;
    int device;
    bool given = type != NULL && type != Py_None;
    if ((given && wm_py_dtype_from_object(type, &dtype) < 0)
        || parse_device(device_object, pinned, &device) < 0
        || wm_py_array_view_data(data, given ? &dtype : NULL, argument, &view)
               < 0)
        return NULL;
    PyObject *result = wm_py_array_copy_of(&view, device, pinned, blocking);
    wm_py_view_release(&view);
    return result;
}

PyDoc_STRVAR(copied_doc,
             "_copied(data, dtype, device, pinned, blocking, name, /)\n--\n\n"
             "Do array(), with `name` as the name of the argument in errors.");

static PyObject *
copied(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data, *type, *device;
    int pinned, blocking;
    const char *name;
    if (!PyArg_ParseTuple(args, "OOOpps:_copied", &data, &type, &device,
                          &pinned, &blocking, &name))
        return NULL;
    return copied_data(data, type, device, pinned, blocking, name);
}

PyDoc_STRVAR(without_memory_doc,
             "_without_memory(shape, dtype, device, /)\n--\n\n"
             "Return an array of a GPU to which no memory is allocated.");

static PyObject *
without_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *shape, *type, *device_object;
    wm_array_t array = {.data = NULL};
    wm_error_t err;
    wm_pointer_t memory = {.kind = WM_MEMORY_DEVICE};
    if (!PyArg_ParseTuple(args, "OOO:_without_memory", &shape, &type,
                          &device_object)
        || wm_py_array_parse_shape(shape, "shape", &array.ndim, array.shape)
               < 0
        || wm_py_dtype_from_object(type, &array.dtype) < 0
        || wm_py_cuda_device(device_object, "it", &memory.device) < 0)
        return NULL;
    wm_py_view_set_contiguous(&array);
    if (wm_storage_wrap(NULL, wm_array_nbytes(&array), &memory, memory.device,
                        false, NULL, NULL, &array.storage, &err)
        < 0)
        return wm_py_raise(&err);
    return wm_py_array_object(&array);
}

static PyObject *
object_of_view(wm_view_t *view)
{
    wm_array_t array;
    if (wm_py_view_to_array(view, &array) < 0) {
        wm_py_view_release(view);
        return NULL;
    }
    return wm_py_array_object(&array);
}

PyDoc_STRVAR(
    asarray_doc,
    "asarray(obj, dtype=None, device=None, copy=None)\n--\n\n"
    "Return a view, without a copy, of any array object: CuPy, Warp,\n"
    "PyTorch, JAX, Numba and NumPy arrays, memoryviews, and other\n"
    "objects with __cuda_array_interface__, __dlpack__ or the buffer\n"
    "protocol. A wm.Array is returned itself. The view keeps the\n"
    "object alive. A view of a read-only object is read-only.\n\n"
    "Other libraries may write to the viewed memory. Each operation\n"
    "on the view therefore waits for the whole device first, unless\n"
    "the object is host memory of which it does not say that a device\n"
    "uses it.\n\n"
    "dtype, device: return a contiguous copy if these differ from\n"
    "those of the object. Only host data is converted. copy: True\n"
    "always copies, False never copies.\n\n"
    "Raises TypeError for any other object or an element type that is\n"
    "not supported. Raises ValueError if the object describes itself\n"
    "wrongly, for an unknown device, and for copy=False if a copy is\n"
    "needed. Raises BufferError for a view of an object that only\n"
    "exports copies.");

// Views an object. `shared`: the view must be on the object's own memory.
static PyObject *
view_of(PyObject *object, bool shared)
{
    wm_view_t view;
    if (Py_TYPE(object) == wm_py_state->array_type)
        return Py_NewRef(object);
    if (wm_py_view_parse(object, false, "obj", &view) < 0)
        return NULL;
    if (shared && wm_py_view_is_copy(&view)
        && wm_py_view_share(object, "obj", &view) < 0) {
        wm_py_view_release(&view);
        return NULL;
    }
    return object_of_view(&view);
}

static PyObject *
asarray(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"obj", "dtype", "device", "copy", NULL};
    PyObject *object, *type = Py_None, *device_object = Py_None,
                      *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO:asarray", names,
                                     &object, &type, &device_object, &copy))
        return NULL;
    bool plain = type == Py_None && device_object == Py_None
                 && copy == Py_None;
    PyObject *view = view_of(object, plain);
    if (view == NULL || plain)
        return view;
    PyObject *result = wm_py_cold("warpmpi._arrays", "_converted", "(OOOOO)",
                                  object, view, type, device_object, copy);
    Py_DECREF(view);
    return result;
}

static int
view_dlpack(PyObject *object, wm_view_t *view)
{
    const void *api;
    if (Py_TYPE(object) == wm_py_state->array_type)
        return wm_py_view_parse(object, false, "x", view);
    wm_viewed_t viewed =
        wm_py_view_exchange.claims(Py_TYPE(object), &api)
            ? wm_py_view_exchange.parse(object, api, false, "x", view)
            : wm_py_view_parse_dlpack(object, false, "x", view);
    if (viewed == WM_VIEW_NONE)
        PyErr_Format(PyExc_TypeError,
                     "x: %.200s has no __dlpack__: wm.asarray() knows other "
                     "protocols too",
                     Py_TYPE(object)->tp_name);
    return viewed == WM_VIEW_FOUND ? 0 : -1;
}

PyDoc_STRVAR(view_of_dlpack_doc,
             "_view_of_dlpack(x, shared, /)\n--\n\n"
             "Return a view of an object by its __dlpack__. If the object\n"
             "exports only a copy, return a read-only view of the copy, or\n"
             "raise BufferError if `shared`.");

static PyObject *
view_of_dlpack(PyObject *Py_UNUSED(module), PyObject *args)
{
    wm_view_t view;
    PyObject *object;
    int shared;
    if (!PyArg_ParseTuple(args, "Op:_view_of_dlpack", &object, &shared)
        || view_dlpack(object, &view) < 0)
        return NULL;
    if (wm_py_view_is_copy(&view)
        && wm_py_view_share(object, "x", &view) < 0) {
        if (shared || !PyErr_ExceptionMatches(PyExc_BufferError)) {
            wm_py_view_release(&view);
            return NULL;
        }
        PyErr_Clear();
    }
    return object_of_view(&view);
}

PyMethodDef wm_py_makers_functions[] = {
    WM_PY_KEYWORDS("empty", empty),
    WM_PY_KEYWORDS("zeros", zeros),
    WM_PY_KEYWORDS("full", full),
    WM_PY_KEYWORDS("asarray", asarray),
    {"_copied", copied, METH_VARARGS, copied_doc},
    {"_without_memory", without_memory, METH_VARARGS, without_memory_doc},
    {"_view_of_dlpack", view_of_dlpack, METH_VARARGS, view_of_dlpack_doc},
    {NULL, NULL, 0, NULL},
};
