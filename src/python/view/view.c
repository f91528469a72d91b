// SPDX-License-Identifier: BSD-3-Clause
#include "python/view/view.h"

#include <string.h>

#include "python/view/array_object.h"
#include "python/view/view_parts.h"

// Libraries with special parsers, in the order in which they are asked whether
// a type is theirs.
static const wm_view_library_t *const libraries[] = {
    &wm_py_view_bytes,    &wm_py_view_masked, &wm_py_view_numpy,
    &wm_py_view_exchange, &wm_py_view_cupy,   &wm_py_view_warp,
    &wm_py_view_jax,
};

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
    if (!Py_IsInitialized())
        return; // at the end of the process objects are left
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

// Runs foreign code for the end of memory, which must not swallow a pending
// exception.
void
wm_py_view_release_owner(void (*release)(void *owner), void *owner)
{
    if (release == wm_py_release_object && Py_REFCNT((PyObject *)owner) > 1) {
        Py_DECREF((PyObject *)owner);
        return;
    }
    PyObject *raised = PyErr_GetRaisedException();
    release(owner);
    PyErr_SetRaisedException(raised);
}

void
wm_py_view_release(wm_view_t *view)
{
    if (view->release != NULL)
        wm_py_view_release_owner(view->release, view->owner);
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

// Returns a copy of the entry: Python code may give the entry to another type.
// An entry is read, and written, as a whole, so the GIL is the lock. The cache
// holds references to the types, so that no other type gets their addresses.
static wm_library_of_type_t
library_of(PyTypeObject *type)
{
    wm_library_of_type_t *entry =
        &wm_py_state->libraries[((uintptr_t)type >> 5) % WM_TYPES_KEPT];
    if (entry->type == type)
        return *entry;
    wm_library_of_type_t fresh = {.type = (PyTypeObject *)Py_NewRef(type)};
    PyObject *raised = PyErr_GetRaisedException();
    for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries); i++) {
        if (libraries[i]->claims(type, &fresh.found)) {
            fresh.library = libraries[i];
            break;
        }
    }
    PyTypeObject *old = entry->type;
    *entry = fresh;
    Py_XDECREF(old);
    PyErr_SetRaisedException(raised);
    return fresh;
}

static wm_viewed_t
parse_own(PyObject *object, wm_view_t *view)
{
    const wm_array_t *array = &((wm_array_object_t *)object)->array;
    wm_array_copy_header(&view->array, array);
    wm_storage_retain(array->storage);
    view->memory = array->storage->memory;
    wm_array_producer(array, &view->producer);
    view->owner = NULL;
    view->release = NULL;
    return WM_VIEW_FOUND;
}

// Prefers DLPack if the CUDA array interface names no stream: then the whole
// device would be waited for, and the handshake of DLPack waits for less. The
// host has no handshake.
static wm_viewed_t
parse_cai_or_better(PyObject *object, bool writable, const char *argument,
                    wm_view_t *view)
{
    bool named;
    wm_viewed_t viewed = wm_py_view_parse_cai(object, argument, view, &named);
    if (viewed == WM_VIEW_FOUND && !named
        && view->producer.kind == WM_PRODUCER_DEVICE) {
        wm_view_t better;
        if (wm_py_view_parse_dlpack(object, writable, argument, &better)
            == WM_VIEW_FOUND) {
            bool taken = better.producer.kind == WM_PRODUCER_STREAM
                         && !wm_py_view_is_copy(&better);
            wm_py_view_release(taken ? view : &better);
            if (taken)
                memcpy(view, &better, sizeof(*view));
        }
        else if (wm_py_drop_refusal() < 0) {
            wm_py_view_release(view);
            return WM_VIEW_FAILED;
        }
    }
    else if (viewed == WM_VIEW_FAILED
             && PyErr_ExceptionMatches(PyExc_TypeError)) {
        // DLPack knows element types that typestrings lack (bfloat16).
        PyObject *refusal = PyErr_GetRaisedException();
        viewed = wm_py_view_parse_dlpack(object, writable, argument, view);
        if (viewed == WM_VIEW_FOUND || wm_py_drop_refusal() < 0) {
            Py_DECREF(refusal);
            return viewed;
        }
        PyErr_SetRaisedException(refusal);
        viewed = WM_VIEW_FAILED;
    }
    return viewed;
}

// Protocols that any object may have, in the order of preference.
static wm_viewed_t (*const protocols[])(PyObject *object, bool writable,
                                        const char *argument,
                                        wm_view_t *view) = {
    parse_cai_or_better,
    wm_py_view_parse_dlpack,
    wm_py_view_parse_buffer,
    wm_py_view_parse_array_interface,
};

wm_viewed_t
wm_py_view_parse_asking(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view)
{
    for (size_t i = 0; i < sizeof(protocols) / sizeof(*protocols); i++) {
        wm_viewed_t viewed = protocols[i](object, writable, argument, view);
        if (viewed != WM_VIEW_NONE)
            return viewed;
    }
    return wm_py_view_fail(
        PyExc_TypeError, argument,
        "%.200s is not an array: pass a wm.Array, or an object with "
        "__cuda_array_interface__, __dlpack__ or the buffer protocol "
        "(CuPy, Warp, PyTorch, JAX, Numba, NumPy)%s",
        Py_TYPE(object)->tp_name,
        strstr(argument, "buf") != NULL
            ? "; lower-case calls, such as send() and bcast(), take any object"
        : strcmp(argument, "obj") == 0
            ? "; wm.array() copies lists and numbers"
            : "");
}

static wm_viewed_t
parse(PyObject *object, bool writable, const char *argument, wm_view_t *view)
{
    if (Py_TYPE(object) == wm_py_state->array_type)
        return parse_own(object, view);
    const wm_library_of_type_t of = library_of(Py_TYPE(object));
    wm_viewed_t viewed = WM_VIEW_NONE;
    if (of.library != NULL)
        viewed = of.library->parse(object, of.found, writable, argument, view);
    if (viewed == WM_VIEW_NONE)
        viewed = wm_py_view_parse_asking(object, writable, argument, view);
    return viewed;
}

int
wm_py_view_parse(PyObject *object, bool writable, const char *argument,
                 wm_view_t *view)
{
    if (parse(object, writable, argument, view) != WM_VIEW_FOUND)
        return -1;
    if (writable && view->array.readonly) {
        bool copy = wm_py_view_is_copy(view);
        wm_py_view_release(view);
        if (copy)
            return wm_py_view_refuse_copy(object, argument);
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
    const wm_view_library_t *library = library_of(Py_TYPE(object)).library;
    return library != NULL && library->inner != NULL
               ? library->inner(object, array)
               : 1;
}

bool
wm_py_view_is_peculiar(PyObject *object)
{
    if (Py_TYPE(object) == wm_py_state->array_type)
        return false;
    const wm_view_library_t *library = library_of(Py_TYPE(object)).library;
    return library != NULL && library->peculiar;
}

bool
wm_py_view_runs_code(PyObject *object)
{
    return Py_TYPE(object) != wm_py_state->array_type
           && !PyObject_CheckBuffer(object)
           && library_of(Py_TYPE(object)).library == NULL;
}

int
wm_py_view_refresh(PyObject *object, const char *argument, const char *data,
                   wm_producer_t *producer)
{
    wm_view_t view;
    wm_viewed_t known = WM_VIEW_NONE;
    if (producer->kind == WM_PRODUCER_STREAM) {
        const wm_view_library_t *library = library_of(Py_TYPE(object)).library;
        if (library != NULL && library->stream != NULL)
            known = library->stream(object, &producer->stream);
    }
    if (known == WM_VIEW_FOUND && !wm_stream_is_default(producer->stream)
        && wm_device_count() > 1) {
        wm_error_t err;
        int code = wm_stream_device(producer->stream, &producer->device, &err);
        return wm_py_result(code, &err);
    }
    if (known != WM_VIEW_NONE)
        return known == WM_VIEW_FOUND ? 0 : -1;
    if (wm_py_view_parse(object, false, argument, &view) < 0)
        return -1;
    bool same = view.array.data == data;
    *producer = view.producer;
    wm_py_view_release(&view);
    return same ? 0
                : wm_py_view_fail(PyExc_RuntimeError, argument,
                                  "the array has other memory than when the "
                                  "request was made: make a new request");
}

int
wm_py_view_to_array(wm_view_t *view, wm_array_t *array)
{
    if (view->array.storage == NULL) {
        char *low;
        size_t length;
        wm_error_t err;
        wm_array_extent(&view->array, &low, &length);
        int others = view->producer.kind == WM_PRODUCER_NONE ? -1
                     : view->memory.device >= 0 ? view->memory.device
                                                : view->producer.device;
        int code = wm_storage_wrap(low, length, &view->memory, others,
                                   view->array.readonly, view->owner,
                                   view->release, &view->array.storage, &err);
        if (wm_py_result(code, &err) < 0)
            return -1;
    }
    wm_array_copy_header(array, &view->array);
    view->array.storage = NULL;
    view->release = NULL;
    return 0;
}
