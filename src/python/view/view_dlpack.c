// SPDX-License-Identifier: BSD-3-Clause
// DLPack import: by its C exchange API, if the type has one, or by __dlpack__
// and its capsules.
#include <string.h>

#include "python/view/view_parts.h"

// Handshake streams of a device, used in turn: a producer makes one wait for
// its work, and our stream follows it. They carry only such waits, and live as
// long as the process.
#define HANDSHAKES 8

// The names of a capsule after its tensor was taken.
#define USED_VERSIONED "used_dltensor_versioned"
#define USED_LEGACY "used_dltensor"

typedef struct {
    int made;
    int next;
    CUstream streams[HANDSHAKES];
} handshakes_t;

static handshakes_t handshakes[WM_MAX_DEVICES];

static int
handshake_stream(int device, const char *argument, CUstream *stream)
{
    wm_error_t err;
    const wm_device_t *facts;
    if (wm_device_get(device, &facts, &err) < 0)
        return wm_py_raise_of(argument, &err);
    handshakes_t *own = &handshakes[device];
    if (own->made < HANDSHAKES) {
        if (wm_stream_create(device, stream, &err) < 0)
            return wm_py_raise_of(argument, &err);
        // Other threads may have made streams meanwhile.
        if (own->made < HANDSHAKES) {
            own->streams[own->made++] = *stream;
            return 0;
        }
        wm_stream_destroy(device, *stream);
    }
    *stream = own->streams[own->next];
    own->next = (own->next + 1) % HANDSHAKES;
    return 0;
}

// Reads strides, which are in elements; missing ones mean row-major.
static int
take_strides(const wm_dl_tensor_t *tensor, const char *argument,
             wm_array_t *array)
{
    int64_t itemsize = wm_dtype_info(array->dtype)->itemsize;
    if (tensor->strides == NULL) {
        wm_py_view_set_contiguous(array);
        return 0;
    }
    for (int i = 0; i < array->ndim; i++) {
        if (__builtin_mul_overflow(tensor->strides[i], itemsize,
                                   &array->strides[i]))
            return wm_py_view_fail(
                PyExc_ValueError, argument,
                "the strides of its DLPack tensor exceed 63 "
                "bits");
    }
    return 0;
}

static bool
is_cuda(int32_t type)
{
    return type == WM_DL_CUDA || type == WM_DL_CUDA_MANAGED;
}

static bool
is_host(int32_t type)
{
    return type == WM_DL_CPU || type == WM_DL_CUDA_HOST;
}

// Checks that CUDA knows memory that the producer declares as GPU memory. The
// device is read from the pointer.
static int
check_device(const wm_dl_tensor_t *tensor, const char *argument,
             const wm_view_t *view)
{
    if (!is_cuda(tensor->device.type) && !is_host(tensor->device.type))
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "DLPack device type %d is not supported: move "
                               "it to the CPU or to a CUDA device first",
                               (int)tensor->device.type);
    if (tensor->device.type == WM_DL_CUDA && view->array.data != NULL
        && view->memory.kind == WM_MEMORY_HOST
        && wm_array_count(&view->array) > 0)
        return wm_py_view_fail(wm_py_state->cuda_error, argument,
                               "it claims to be memory of cuda:%d, but CUDA "
                               "does not know the pointer %p",
                               (int)tensor->device.id, view->array.data);
    return 0;
}

static int
take_tensor(const wm_dl_tensor_t *tensor, const char *argument,
            wm_view_t *view, wm_dl_device_t *device)
{
    wm_error_t err;
    wm_array_t *array = &view->array;
    if (tensor->ndim < 0 || tensor->ndim > WM_MAX_NDIM)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "%d dimensions: at most %d are supported",
                               (int)tensor->ndim, WM_MAX_NDIM);
    if (wm_dtype_from_dlpack(tensor->dtype.code, tensor->dtype.bits,
                             tensor->dtype.lanes, &array->dtype, &err)
        < 0)
        return wm_py_raise_of(argument, &err);
    if (tensor->ndim > 0 && tensor->shape == NULL)
        return wm_py_view_fail(PyExc_ValueError, argument,
                               "its DLPack tensor has no shape");
    array->ndim = tensor->ndim;
    for (int i = 0; i < array->ndim; i++)
        array->shape[i] = tensor->shape[i];
    if (take_strides(tensor, argument, array) < 0)
        return -1;
    array->data = tensor->data == NULL
                      ? NULL
                      : (char *)tensor->data + tensor->byte_offset;
    array->readonly = false;
    *device = tensor->device;
    return wm_py_view_set_memory(view, argument) < 0
               ? -1
               : check_device(tensor, argument, view);
}

// Returns true, and the table, if a type offers a table that we can use. No
// exception.
static bool
claims_exchange(PyTypeObject *type, const void **found)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type,
                                               "__dlpack_c_exchange_api__");
    const wm_dl_exchange_t *api = NULL;
    if (capsule != NULL && PyCapsule_CheckExact(capsule))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule); // the table lives as long as the process
    while (api != NULL && api->version.major != WM_DL_MAJOR)
        api = api->previous;
    bool usable = api != NULL && api->from_object != NULL
                  && api->current_stream != NULL;
    *found = api;
    return usable;
}

// Release the two kinds of tensors. The deleter takes the GIL itself if need
// be.
static void
delete_versioned(void *owner)
{
    wm_dl_versioned_t *tensor = owner;
    if (tensor->deleter != NULL)
        tensor->deleter(tensor);
}

static void
delete_legacy(void *owner)
{
    wm_dl_managed_t *tensor = owner;
    if (tensor->deleter != NULL)
        tensor->deleter(tensor);
}

// Releases a capsule and its tensor. Some producers' tensors live in their
// capsule, against the protocol, so the capsule is kept as long.
static void
release_capsule(void *owner)
{
    if (!Py_IsInitialized())
        return; // at the end of the process objects are left
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *capsule = owner;
    if (PyCapsule_IsValid(capsule, USED_VERSIONED))
        delete_versioned(PyCapsule_GetPointer(capsule, USED_VERSIONED));
    else if (PyCapsule_IsValid(capsule, USED_LEGACY))
        delete_legacy(PyCapsule_GetPointer(capsule, USED_LEGACY));
    Py_DECREF(capsule);
    PyGILState_Release(state);
}

bool
wm_py_view_is_copy(const wm_view_t *view)
{
    const wm_dl_versioned_t *tensor = NULL;
    if (view->release == delete_versioned)
        tensor = view->owner;
    else if (view->release == release_capsule
             && PyCapsule_IsValid(view->owner, USED_VERSIONED))
        tensor = PyCapsule_GetPointer(view->owner, USED_VERSIONED);
    return tensor != NULL && (tensor->flags & WM_DL_COPIED) != 0;
}

int
wm_py_view_refuse_copy(PyObject *object, const char *argument)
{
    return wm_py_view_fail(
        PyExc_BufferError, argument,
        "%.200s exports only a copy of its memory: use an array that shares "
        "its memory, such as wm.empty(shape, dtype)",
        Py_TYPE(object)->tp_name);
}

int
wm_py_view_share(PyObject *object, const char *argument, wm_view_t *view)
{
    wm_view_t other;
    wm_viewed_t viewed = wm_py_view_parse_dlpack(object, true, argument,
                                                 &other);
    if (viewed == WM_VIEW_FOUND && wm_py_view_is_copy(&other)) {
        wm_py_view_release(&other);
        viewed = WM_VIEW_NONE;
    }
    if (viewed == WM_VIEW_FAILED)
        return -1;
    if (viewed == WM_VIEW_NONE)
        return wm_py_view_refuse_copy(object, argument);
    wm_py_view_release(view);
    memcpy(view, &other, sizeof(*view));
    return 0;
}

// Takes over the tensor, also on failure.
static int
take_versioned(wm_dl_versioned_t *managed, const char *argument,
               wm_view_t *view, wm_dl_device_t *device)
{
    if (managed->version.major != WM_DL_MAJOR) {
        int major = (int)managed->version.major;
        wm_py_view_release_owner(delete_versioned, managed);
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "its DLPack tensor is of version %d, not 1",
                               major);
    }
    if (take_tensor(&managed->tensor, argument, view, device) < 0) {
        wm_py_view_release_owner(delete_versioned, managed);
        return -1;
    }
    // Writes into a copy do not reach the object.
    view->array.readonly = (managed->flags & (WM_DL_READ_ONLY | WM_DL_COPIED))
                           != 0;
    view->owner = managed;
    view->release = delete_versioned;
    return 0;
}

static int
take_legacy(wm_dl_managed_t *managed, const char *argument, wm_view_t *view,
            wm_dl_device_t *device)
{
    int code = take_tensor(&managed->tensor, argument, view, device);
    if (code < 0)
        wm_py_view_release_owner(delete_legacy, managed);
    return code;
}

// Takes a tensor borrowed from the object, which is kept; or a managed one.
static int
take_by_exchange(PyObject *object, const wm_dl_exchange_t *api,
                 const char *argument, wm_view_t *view, wm_dl_device_t *device)
{
    if (api->borrow != NULL) {
        wm_dl_tensor_t tensor;
        if (api->borrow(object, &tensor) < 0
            || take_tensor(&tensor, argument, view, device) < 0)
            return -1;
        wm_py_view_own_object(view, object);
        return 0;
    }
    wm_dl_versioned_t *managed;
    if (api->from_object(object, &managed) < 0)
        return -1;
    return take_versioned(managed, argument, view, device);
}

// Refuses conjugated and negated views of Torch: the exchange does not show
// their bit, and their memory has other numbers.
static int
check_lazy_bit(PyObject *object, PyObject *method, const char *argument)
{
    PyObject *answer = PyObject_CallMethodNoArgs(object, method);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear(); // not Torch
        return 0;
    }
    int set = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (set > 0)
        return wm_py_view_fail(PyExc_BufferError, argument,
                               "a lazily conjugated or negated tensor: call "
                               ".resolve_conj().resolve_neg() first");
    return set;
}

static int
check_lazy_bits(PyObject *object, const char *argument,
                const wm_array_t *array)
{
    wm_dtype_t dtype = array->dtype;
    int bad = 0;
    if (dtype == WM_COMPLEX64 || dtype == WM_COMPLEX128)
        bad = check_lazy_bit(object, wm_py_state->names.is_conj, argument);
    if (bad == 0 && wm_dtype_info(dtype)->dlpack_code >= 2 && dtype != WM_BOOL
        && !wm_array_is_contiguous(array))
        bad = check_lazy_bit(object, wm_py_state->names.is_neg, argument);
    return bad;
}

static wm_viewed_t
parse_exchange(PyObject *object, const void *found, bool writable,
               const char *argument, wm_view_t *view)
{
    const wm_dl_exchange_t *api = found;
    wm_dl_device_t device;
    if (take_by_exchange(object, api, argument, view, &device) < 0) {
        if (!PyErr_Occurred())
            return wm_py_view_fail(PyExc_BufferError, argument,
                                   "its DLPack exchange failed");
        return WM_VIEW_FAILED;
    }
    if (check_lazy_bits(object, argument, &view->array) < 0) {
        wm_py_view_release(view);
        return WM_VIEW_FAILED;
    }
    if (writable && wm_py_view_is_copy(view)) {
        wm_py_view_release(view); // __dlpack__ can be asked not to copy
        return WM_VIEW_NONE;
    }
    // Torch calls page-locked memory the CPU's.
    if (is_host(device.type) && view->memory.kind == WM_MEMORY_PINNED)
        device = (wm_dl_device_t){WM_DL_CUDA,
                                  wm_pointer_home(view->array.data)};
    if (!is_cuda(device.type) || device.id < 0
        || view->memory.kind == WM_MEMORY_HOST)
        return WM_VIEW_FOUND;
    void *stream;
    if (api->current_stream(device.type, device.id, &stream) < 0) {
        wm_py_view_release(view);
        return WM_VIEW_FAILED;
    }
    view->producer.kind = WM_PRODUCER_STREAM;
    view->producer.device = device.id;
    view->producer.stream = stream != NULL ? stream : CU_STREAM_LEGACY;
    return WM_VIEW_FOUND;
}

const wm_view_library_t wm_py_view_exchange = {
    .claims = claims_exchange,
    .parse = parse_exchange,
};

// Calls __dlpack__ with the arguments of version 1; after a TypeError again
// without the newest of them. `stream` is NULL on the host.
static PyObject *
call_dlpack(PyObject *method, PyObject *stream, bool shared)
{
    static const char *const newest[] = {"copy", "max_version"};
    PyObject *capsule = NULL;
    PyObject *args = PyTuple_New(0);
    PyObject *words = Py_BuildValue("{s:(ii)}", "max_version", WM_DL_MAJOR,
                                    WM_DL_MINOR);
    if (args == NULL || words == NULL
        || (stream != NULL
            && PyDict_SetItemString(words, "stream", stream) < 0)
        || (shared && PyDict_SetItemString(words, "copy", Py_False) < 0))
        goto done;
    capsule = PyObject_Call(method, args, words);
    for (int i = shared ? 0 : 1;
         i < 2 && capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError);
         i++) {
        PyErr_Clear();
        if (PyDict_DelItemString(words, newest[i]) == 0)
            capsule = PyObject_Call(method, args, words);
    }
done:
    Py_XDECREF(args);
    Py_XDECREF(words);
    return capsule;
}

static int
take_capsule(PyObject *capsule, const char *argument, wm_view_t *view,
             wm_dl_device_t *device)
{
    bool versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
    if (!versioned && !PyCapsule_IsValid(capsule, "dltensor"))
        return wm_py_view_fail(
            PyExc_BufferError, argument,
            "its __dlpack__ did not return an unused DLPack capsule");
    void *managed = PyCapsule_GetPointer(
        capsule, versioned ? "dltensor_versioned" : "dltensor");
    if (PyCapsule_SetName(capsule, versioned ? USED_VERSIONED : USED_LEGACY)
        < 0)
        return -1;
    int status = versioned ? take_versioned(managed, argument, view, device)
                           : take_legacy(managed, argument, view, device);
    if (status == 0) {
        view->owner = Py_NewRef(capsule);
        view->release = release_capsule;
    }
    return status;
}

// Reads (type, id) from __dlpack_device__. Returns 0, or -1.
static int
ask_device(PyObject *object, const char *argument, wm_dl_device_t *device)
{
    PyObject *answer = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (answer == NULL)
        return -1;
    int status = -1;
    if (PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2) {
        long type = PyLong_AsLong(PyTuple_GET_ITEM(answer, 0));
        long id = PyErr_Occurred()
                      ? -1
                      : PyLong_AsLong(PyTuple_GET_ITEM(answer, 1));
        if (!PyErr_Occurred() && type == (int32_t)type && id == (int32_t)id) {
            device->type = (int32_t)type;
            device->id = (int32_t)id;
            status = 0;
        }
    }
    Py_DECREF(answer);
    if (status < 0)
        return wm_py_view_fail(
            PyExc_BufferError, argument,
            "its __dlpack_device__ did not return a pair of ints");
    return 0;
}

// Called with the exception of a producer that was asked not to copy: replaces
// a refusal by one in our words, with the cure.
static void
tell_refusal(PyObject *object, const char *argument)
{
    if (!PyErr_ExceptionMatches(PyExc_BufferError))
        return;
    PyObject *refusal = PyErr_GetRaisedException();
    wm_py_view_fail(PyExc_BufferError, argument,
                    "%.200s does not share its memory (%S): use an array that "
                    "does, such as wm.empty(shape, dtype)",
                    Py_TYPE(object)->tp_name, refusal);
    Py_DECREF(refusal);
}

static wm_viewed_t
parse_by_method(PyObject *object, PyObject *method, bool shared,
                const char *argument, wm_view_t *view)
{
    wm_dl_device_t device;
    CUstream stream = NULL;
    PyObject *number = NULL, *capsule = NULL;
    wm_viewed_t viewed = WM_VIEW_FAILED;
    if (ask_device(object, argument, &device) < 0)
        return WM_VIEW_FAILED;
    bool cuda = is_cuda(device.type);
    if (!cuda && !is_host(device.type)) {
        wm_dl_tensor_t tensor = {.device = device};
        return check_device(&tensor, argument, view);
    }
    if (cuda) {
        if (handshake_stream(device.id, argument, &stream) < 0)
            return WM_VIEW_FAILED;
        number = PyLong_FromVoidPtr(stream);
        if (number == NULL)
            return WM_VIEW_FAILED;
    }
    capsule = call_dlpack(method, number, shared);
    if (capsule == NULL && shared)
        tell_refusal(object, argument);
    if (capsule == NULL || take_capsule(capsule, argument, view, &device) < 0)
        goto done;
    if (cuda && view->memory.kind != WM_MEMORY_HOST) {
        view->producer.kind = WM_PRODUCER_STREAM;
        view->producer.device = device.id;
        view->producer.stream = stream;
    }
    viewed = WM_VIEW_FOUND;
    // DLPack has no handshake for page-locked memory.
    if (device.type == WM_DL_CUDA_HOST
        && wm_py_view_set_producer(view, false, NULL, argument) < 0) {
        wm_py_view_release(view);
        viewed = WM_VIEW_FAILED;
    }
done:
    Py_XDECREF(number);
    if (capsule != NULL)
        wm_py_view_release_owner(wm_py_release_object, capsule);
    return viewed;
}

wm_viewed_t
wm_py_view_parse_dlpack(PyObject *object, bool shared, const char *argument,
                        wm_view_t *view)
{
    PyObject *method = wm_py_attribute(object, wm_py_state->names.dlpack);
    if (method == NULL)
        return PyErr_Occurred() ? WM_VIEW_FAILED : WM_VIEW_NONE;
    wm_viewed_t viewed = parse_by_method(object, method, shared, argument,
                                         view);
    Py_DECREF(method);
    return viewed;
}
