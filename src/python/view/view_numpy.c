// SPDX-License-Identifier: BSD-3-Clause
// NumPy's arrays, read as C structures: this takes a third of the time of the
// buffer protocol.
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include "python/view/view_parts.h"

#include <numpy/arrayobject.h>

// For arrays up to this size the driver is not asked whether their memory is
// registered: to ask takes longer than to copy.
#define SHORT_BYTES 4096

// Returns an attribute of a module that the program has imported, else NULL;
// no exception. A new reference.
static PyObject *
imported(const char *module_name, const char *attribute)
{
    PyObject *name = PyUnicode_FromString(module_name);
    PyObject *module = name != NULL ? PyImport_GetModule(name) : NULL;
    PyObject *value = module != NULL
                          ? PyObject_GetAttrString(module, attribute)
                          : NULL;
    PyErr_Clear();
    Py_XDECREF(module);
    Py_XDECREF(name);
    return value;
}

static bool has_our_abi; // NumPy's header has checked this

// Returns 0, or -1 with an exception, which NumPy also prints.
static int
import_functions(void)
{
    import_array1(-1);
    return 0;
}

// Returns numpy.ndarray, NULL until the program has imported it; no exception.
static PyTypeObject *
array_type(void)
{
    wm_state_t *state = wm_py_state;
    if (state->numpy_array_type == NULL) {
        PyObject *type = imported("numpy", "ndarray");
        if (type != NULL) {
            has_our_abi = import_functions() == 0;
            PyErr_Clear();
            state->numpy_array_type = type;
        }
    }
    return (PyTypeObject *)state->numpy_array_type;
}

// Integers of one kind are in order of size.
#define OF_SIZE(first, type)                                                  \
    (1 + (first) + (sizeof(type) > 1) + (sizeof(type) > 2)                    \
     + (sizeof(type) > 4))

// Finds a type by NumPy's number; arrays of other types use the buffer
// protocol.
static bool
dtype_of_number(int number, wm_dtype_t *dtype)
{
    static const uint8_t known[NPY_HALF + 1] = {
        // the type plus 1; 0: none
        [NPY_BOOL] = 1 + WM_BOOL,
        [NPY_BYTE] = OF_SIZE(WM_INT8, npy_byte),
        [NPY_SHORT] = OF_SIZE(WM_INT8, npy_short),
        [NPY_INT] = OF_SIZE(WM_INT8, npy_int),
        [NPY_LONG] = OF_SIZE(WM_INT8, npy_long),
        [NPY_LONGLONG] = OF_SIZE(WM_INT8, npy_longlong),
        [NPY_UBYTE] = OF_SIZE(WM_UINT8, npy_ubyte),
        [NPY_USHORT] = OF_SIZE(WM_UINT8, npy_ushort),
        [NPY_UINT] = OF_SIZE(WM_UINT8, npy_uint),
        [NPY_ULONG] = OF_SIZE(WM_UINT8, npy_ulong),
        [NPY_ULONGLONG] = OF_SIZE(WM_UINT8, npy_ulonglong),
        [NPY_HALF] = 1 + WM_FLOAT16,
        [NPY_FLOAT] = 1 + WM_FLOAT32,
        [NPY_DOUBLE] = 1 + WM_FLOAT64,
        [NPY_CFLOAT] = 1 + WM_COMPLEX64,
        [NPY_CDOUBLE] = 1 + WM_COMPLEX128,
    };
    if (number < 0 || number > NPY_HALF || known[number] == 0)
        return false;
    *dtype = (wm_dtype_t)(known[number] - 1);
    return true;
}

// Returns true if NumPy allocated the memory with malloc(), its default.
static bool
is_malloced(PyArrayObject *array)
{
    PyObject *base = PyArray_BASE(array);
    if (base != NULL && Py_TYPE(base) == Py_TYPE(array))
        array = (PyArrayObject *)base; // NumPy's base owns the memory
    return (PyArray_FLAGS(array) & NPY_ARRAY_OWNDATA)
           && PyArray_HANDLER(array) == PyDataMem_DefaultHandler;
}

// Returns true if the structure tells all; otherwise the protocol is asked.
static bool
is_plain(PyArrayObject *array, bool writable)
{
    int flags = PyArray_FLAGS(array);
    // The sign is a private flag: writes give a warning.
    bool writes = (flags & NPY_ARRAY_WRITEABLE) && flags >= 0;
    return PyArray_ISNOTSWAPPED(array) && PyArray_NDIM(array) <= WM_MAX_NDIM
           && (writes || !writable);
}

static wm_viewed_t
parse_memory(PyObject *object, bool writable, const char *argument,
             wm_view_t *view)
{
    PyArrayObject *source = (PyArrayObject *)object;
    wm_array_t *array = &view->array;
    if (!has_our_abi)
        return wm_py_view_fail(
            PyExc_ImportError, argument,
            "warpmpi was built for another NumPy than the one "
            "that runs: build warpmpi again where this one is "
            "installed");
    if (!is_plain(source, writable)
        || !dtype_of_number(PyArray_TYPE(source), &array->dtype))
        return wm_py_view_parse_buffer(object, writable, argument, view);
    array->data = PyArray_BYTES(source);
    array->readonly = !(PyArray_FLAGS(source) & NPY_ARRAY_WRITEABLE);
    array->ndim = PyArray_NDIM(source);
    for (int i = 0; i < array->ndim; i++) {
        array->shape[i] = PyArray_DIMS(source)[i];
        array->strides[i] = PyArray_STRIDES(source)[i];
    }
    if (wm_array_nbytes(array) <= SHORT_BYTES && is_malloced(source)) {
        view->producer = wm_py_view_nobody;
        array->storage = NULL;
        view->memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    }
    else if (wm_py_view_set_memory(view, argument) < 0)
        return WM_VIEW_FAILED;
    wm_py_view_own_object(view, object);
    return WM_VIEW_FOUND;
}

// found: not NULL if the type names streams as well.
static wm_viewed_t
parse_numpy(PyObject *object, const void *found, bool writable,
            const char *argument, wm_view_t *view)
{
    wm_viewed_t viewed = parse_memory(object, writable, argument, view);
    if (viewed == WM_VIEW_FOUND && found != NULL
        && wm_py_view_ask_producer(object, argument, view) < 0) {
        wm_py_view_release(view);
        viewed = WM_VIEW_FAILED;
    }
    return viewed;
}

// Returns true if the type is NumPy's ndarray, or derives from it, whatever
// its name; no exception. Numba's arrays of mapped and of managed memory
// derive from it, and name their stream.
static bool
claims_numpy(PyTypeObject *type, const void **found)
{
    PyTypeObject *known = array_type();
    if (known == NULL || !PyType_IsSubtype(type, known))
        return false;
    if (type != known
        && PyObject_HasAttr((PyObject *)type,
                            wm_py_state->names.cuda_array_interface))
        *found = type;
    return true;
}

const wm_view_library_t wm_py_view_numpy = {
    .claims = claims_numpy,
    .parse = parse_numpy,
};

bool
wm_py_view_is_plain(PyObject *object, bool computes)
{
    PyArrayObject *array = (PyArrayObject *)object;
    wm_dtype_t dtype;
    return Py_TYPE(object) == array_type() && has_our_abi && is_malloced(array)
           && (PyArray_FLAGS(array)
               & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS))
           && dtype_of_number(PyArray_TYPE(array), &dtype)
           && !(computes && dtype == WM_FLOAT16);
}

// Returns true for numpy.ma.MaskedArray and derived types.
static bool
claims_masked(PyTypeObject *type, const void **Py_UNUSED(found))
{
    PyObject *masked = imported("numpy.ma.core", "MaskedArray");
    bool result = masked != NULL && PyType_Check(masked)
                  && PyType_IsSubtype(type, (PyTypeObject *)masked);
    Py_XDECREF(masked);
    return result;
}

static wm_viewed_t
parse_masked(PyObject *object, const void *found, bool writable,
             const char *argument, wm_view_t *view)
{
    PyObject *mask = PyObject_GetAttrString(object, "mask");
    if (mask == NULL)
        return WM_VIEW_FAILED;
    PyObject *none = imported("numpy.ma.core", "nomask");
    bool masked = mask != none;
    Py_XDECREF(none);
    Py_DECREF(mask);
    return !masked
               ? parse_numpy(object, found, writable, argument, view)
               : wm_py_view_fail(
                   PyExc_TypeError, argument,
                   "the array is a masked array, and messages have no mask: "
                   "give array.filled(), or array.data for all its values");
}

const wm_view_library_t wm_py_view_masked = {
    .claims = claims_masked,
    .parse = parse_masked,
    .peculiar = true,
};
