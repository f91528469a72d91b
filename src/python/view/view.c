// SPDX-License-Identifier: BSD-3-Clause
#include "python/view/view.h"

#include <stdatomic.h>
#include <string.h>

#include "python/core/compat.h"
#include "python/view/array_object.h"
#include "python/view/view_parts.h"

// How objects of a type are read.
typedef enum {
    WAY_ASK = 0,  // ask the object what it speaks
    WAY_BUFFER,   // bytes and their like
    WAY_NUMPY,    // the structures of its arrays
    WAY_MASKED,   // likewise, unless a mask hides some of the elements
    WAY_EXCHANGE, // DLPack's C functions
    WAY_CUPY,     // by its attributes
    WAY_WARP,     // CUDA array interface; the stream is elsewhere
    WAY_JAX,      // immutable
} way_t;

PyObject *
wm_py_attribute(PyObject *object, PyObject *name)
{
    PyObject *value = NULL;
    (void)PyObject_GetOptionalAttr(object, name, &value);
    return value;
}

void
wm_py_release_object(void *object)
{
    if (!Py_IsInitialized()) {
        return; // what is left at the end of the process stays
    }
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)object);
    PyGILState_Release(state);
}

void
wm_py_view_own_object(wm_view_t *view, PyObject *object)
{
    view->owner = Py_NewRef(object);
    view->release = wm_py_release_object;
}

// Runs whatever code others have for the end of their memory, which must not
// swallow the exception that is on its way.
void
wm_py_view_release_owner(void (*release)(void *owner), void *owner)
{
    PyObject *type, *value, *traceback;
    if (release == wm_py_release_object && Py_REFCNT((PyObject *)owner) > 1) {
        Py_DECREF((PyObject *)owner);
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    release(owner);
    PyErr_Restore(type, value, traceback);
}

void
wm_py_view_release(wm_view_t *view)
{
    if (view->release != NULL) {
        wm_py_view_release_owner(view->release, view->owner);
    }
    view->release = NULL;
    wm_array_clear(&view->array);
}

PyObject *
wm_py_view_object(void (*release)(void *owner), void *owner)
{
    return release == wm_py_release_object
               ? owner
               : wm_py_view_buffer_object(release, owner);
}

// Whether the type is defined in the package (or a module inside of it).
static bool
is_of_package(PyTypeObject *type, const char *package)
{
    bool result = false;
    PyObject *module = PyObject_GetAttrString((PyObject *)type, "__module__");
    const char *name = module != NULL && PyUnicode_Check(module)
                           ? PyUnicode_AsUTF8(module)
                           : NULL;
    if (name != NULL) {
        size_t length = strlen(package);
        result = strncmp(name, package, length) == 0
                 && (name[length] == '\0' || name[length] == '.');
    }
    PyErr_Clear();
    Py_XDECREF(module);
    return result;
}

static void
classify(wm_way_of_type_t *slot, PyTypeObject *type)
{
    slot->way = WAY_ASK;
    slot->api = NULL;
    if (type == &PyBytes_Type || type == &PyByteArray_Type
        || type == &PyMemoryView_Type) {
        slot->way = WAY_BUFFER;
    }
    else if (wm_py_view_is_numpy_type(type)) {
        slot->way = wm_py_view_is_masked_type(type) ? WAY_MASKED : WAY_NUMPY;
    }
    else if ((slot->api = wm_py_dl_exchange_of(type)) != NULL) {
        slot->way = WAY_EXCHANGE;
    }
    else if (strcmp(type->tp_name, "ndarray") == 0
             && is_of_package(type, "cupy")) {
        slot->way = WAY_CUPY;
    }
    else if (strcmp(type->tp_name, "array") == 0
             && is_of_package(type, "warp")) {
        slot->way = WAY_WARP;
    }
    else if (is_of_package(type, "jax") || is_of_package(type, "jaxlib")) {
        slot->way = WAY_JAX;
    }
}

// A copy: whatever runs Python code may give the slot to another type. It is
// read, and written, whole: the GIL is lock enough. The types are held on to,
// so that an address is never another type's.
static wm_way_of_type_t
slot_of(PyTypeObject *type)
{
    wm_way_of_type_t *slot =
        &wm_py_state->ways[((uintptr_t)type >> 5) % WM_WAYS_KEPT];
    if (slot->type == type) {
        return *slot;
    }
    wm_way_of_type_t fresh = {.type = (PyTypeObject *)Py_NewRef(type)};
    classify(&fresh, type);
    PyTypeObject *old = slot->type;
    *slot = fresh;
    Py_XDECREF(old);
    return fresh;
}

static int
parse_own(PyObject *object, wm_view_t *view)
{
    const wm_array_t *array = &((wm_array_object_t *)object)->array;
    wm_array_copy_header(&view->array, array);
    wm_storage_retain(array->storage);
    view->memory = array->storage->memory;
    wm_array_producer(array, &view->producer);
    view->owner = NULL;
    view->release = NULL;
    return 1;
}

// Torch marks conjugated and negated views by a bit that the exchange does
// not show: their memory holds other numbers.
static int
check_lazy_bit(PyObject *object, PyObject *method, const char *argument)
{
    PyObject *answer = PyObject_CallMethodNoArgs(object, method);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear(); // not Torch
        return 0;
    }
    int set = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (set > 0) {
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "a lazily conjugated or negated tensor: call "
                               ".resolve_conj().resolve_neg() first");
    }
    return set;
}

static int
parse_exchange(PyObject *object, const wm_way_of_type_t *slot,
               const char *argument, wm_view_t *view)
{
    int status = wm_py_view_parse_exchange(object, slot->api, argument, view);
    if (status <= 0) {
        return status;
    }
    wm_dtype_t dtype = view->array.dtype;
    int bad = 0;
    if (dtype == WM_COMPLEX64 || dtype == WM_COMPLEX128) {
        bad = check_lazy_bit(object, wm_py_state->names.is_conj, argument);
    }
    if (bad == 0 && wm_dtype_info(dtype)->dlpack_code >= 2 && dtype != WM_BOOL
        && !wm_array_is_contiguous(&view->array)) {
        bad = check_lazy_bit(object, wm_py_state->names.is_neg, argument);
    }
    if (bad < 0) {
        wm_py_view_release(view);
        return -1;
    }
    return 1;
}

// The whole device is waited for where the CUDA array interface names no
// stream; a handshake, where the object knows it, waits for less.
static int
parse_cai_or_better(PyObject *object, const char *argument, wm_view_t *view)
{
    bool named;
    int status = wm_py_view_parse_cai(object, argument, view, &named);
    if (status > 0 && !named && view->producer.kind == WM_PRODUCER_DEVICE) {
        wm_view_t better;
        if (wm_py_view_parse_dlpack(object, argument, &better) > 0) {
            wm_py_view_release(view);
            memcpy(view, &better, sizeof(*view));
        }
        PyErr_Clear();
    }
    else if (status < 0 && PyErr_ExceptionMatches(PyExc_TypeError)) {
        // An element type that typestrings cannot say (bfloat16) is known to
        // DLPack.
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (wm_py_view_parse_dlpack(object, argument, view) > 0) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
            return 1;
        }
        PyErr_Restore(type, value, traceback);
    }
    return status;
}

static int
parse_asking(PyObject *object, bool writable, const char *argument,
             wm_view_t *view)
{
    int status = parse_cai_or_better(object, argument, view);
    if (status == 0) {
        status = wm_py_view_parse_dlpack(object, argument, view);
    }
    if (status == 0) {
        status = wm_py_view_parse_buffer(object, writable, argument, view);
    }
    if (status == 0) {
        status = wm_py_view_parse_array_interface(object, argument, view);
    }
    if (status == 0) {
        return wm_py_view_fail(
            PyExc_TypeError, argument,
            "%.200s is not an array: pass a wm.Array, or an object with "
            "__cuda_array_interface__, __dlpack__ or the buffer protocol "
            "(CuPy, Warp, PyTorch, JAX, Numba, NumPy)",
            Py_TYPE(object)->tp_name);
    }
    return status;
}

// On a host array of Warp the interface for CUDA is missing.
static int
parse_jax_or_warp(PyObject *object, const wm_way_of_type_t *slot,
                  bool writable, const char *argument, wm_view_t *view)
{
    int status;
    if (slot->way == WAY_WARP) {
        status = wm_py_view_parse_warp(object, argument, view);
        if (status == 0) {
            status = wm_py_view_parse_array_interface(object, argument, view);
        }
        if (status == 0) {
            status = parse_asking(object, writable, argument, view);
        }
        if (status < 0) {
            wm_py_view_refuse_struct(object, argument);
        }
        return status;
    }
    if (writable) {
        return wm_py_view_fail(
            PyExc_BufferError, argument,
            "JAX arrays cannot be changed: receive into wm.empty(shape, "
            "dtype) and convert it with jax.dlpack.from_dlpack()");
    }
    status = wm_py_view_parse_dlpack(object, argument, view);
    if (status == 0) {
        status = parse_asking(object, writable, argument, view);
    }
    if (status > 0) {
        view->array.readonly = true;
    }
    return status;
}

static int
parse(PyObject *object, bool writable, const char *argument, wm_view_t *view)
{
    if (Py_TYPE(object) == wm_py_state->array_type) {
        return parse_own(object, view);
    }
    const wm_way_of_type_t slot = slot_of(Py_TYPE(object));
    int status;
    switch (slot.way) {
    case WAY_BUFFER:
        return wm_py_view_parse_buffer(object, writable, argument, view);
    case WAY_MASKED:
        if (wm_py_view_check_mask(object, argument) < 0) {
            return -1;
        }
        // fall through
    case WAY_NUMPY:
        return wm_py_view_parse_numpy(object, writable, argument, view);
    case WAY_EXCHANGE:
        return parse_exchange(object, &slot, argument, view);
    case WAY_CUPY:
        status = wm_py_view_parse_cupy(object, argument, view);
        return status != 0 ? status
                           : parse_asking(object, writable, argument, view);
    case WAY_WARP:
    case WAY_JAX:
        return parse_jax_or_warp(object, &slot, writable, argument, view);
    case WAY_ASK:
    default:
        return parse_asking(object, writable, argument, view);
    }
}

int
wm_py_view_parse(PyObject *object, bool writable, const char *argument,
                 wm_view_t *view)
{
    int status = parse(object, writable, argument, view);
    if (status <= 0) {
        return -1;
    }
    if (writable && view->array.readonly) {
        wm_py_view_release(view);
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "%.200s is read-only: receive into a writable "
                               "array, such as wm.empty(shape, dtype)",
                               Py_TYPE(object)->tp_name);
    }
    return 0;
}

int64_t
wm_py_view_inner(PyObject *object, const wm_array_t *array)
{
    int64_t inner = 1;
    if (slot_of(Py_TYPE(object)).way == WAY_WARP) {
        for (int i = wm_py_view_ndim_warp(object, array); i < array->ndim;
             i++) {
            inner *= array->shape[i];
        }
    }
    return inner > 0 ? inner : 1;
}

bool
wm_py_view_is_peculiar(PyObject *object)
{
    if (Py_TYPE(object) == wm_py_state->array_type) {
        return false;
    }
    way_t way = slot_of(Py_TYPE(object)).way;
    return way == WAY_WARP || way == WAY_MASKED;
}

int
wm_py_view_refresh(PyObject *object, const char *argument, const char *data,
                   wm_producer_t *producer)
{
    wm_view_t view;
    int known = 0;
    if (producer->kind == WM_PRODUCER_STREAM) {
        way_t way = slot_of(Py_TYPE(object)).way;
        known = way == WAY_CUPY ? wm_py_view_stream_cupy(&producer->stream)
                : way == WAY_WARP
                    ? wm_py_view_stream_warp(object, &producer->stream)
                    : 0;
    }
    if (known > 0 && !wm_stream_is_default(producer->stream)
        && wm_device_count() > 1) {
        wm_error_t err;
        if (wm_device_of_stream(producer->stream, &producer->device, &err)
            < 0) {
            wm_py_raise(&err);
            return -1;
        }
    }
    if (known != 0) {
        return known < 0 ? -1 : 0;
    }
    if (wm_py_view_parse(object, false, argument, &view) < 0) {
        return -1;
    }
    bool same = view.array.data == data;
    *producer = view.producer;
    wm_py_view_release(&view);
    return same ? 0
                : wm_py_view_fail(PyExc_RuntimeError, argument,
                                  "the array's memory is not what it was when "
                                  "the request was made: make a new one");
}

int
wm_py_view_to_array(wm_view_t *view, wm_array_t *array)
{
    if (view->array.storage == NULL) {
        char *low;
        size_t length;
        wm_error_t err;
        wm_array_extent(&view->array, &low, &length);
        if (wm_storage_wrap(low, length, &view->memory, view->array.readonly,
                            view->owner, view->release, &view->array.storage,
                            &err)
            < 0) {
            wm_py_raise(&err);
            return -1;
        }
    }
    wm_array_copy_header(array, &view->array);
    view->array.storage = NULL;
    view->release = NULL;
    return 0;
}
