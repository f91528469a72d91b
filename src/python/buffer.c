// SPDX-License-Identifier: BSD-3-Clause
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "python/buffer.h"

#include "comm/progress.h"

#include "python/datatype.h"
#include "python/dlpack.h"
#include "python/view.h"

// Memory kept alive by an operation. Operations may end on the progress
// thread, which must not take the GIL: then it waits here for a thread that
// holds it.
typedef struct owner {
    struct owner *next;
    _Atomic int uses; // 1, or more of a persistent request's
    wm_view_t view;
    bool viewed;
    Py_buffer raw; // of an object whose elements have no dtype of ours
    // Host memory whose datatype has gaps: a copy without them, and what it
    // is copied back to.
    void *packed;
    size_t packed_bytes, size;
    char *user;
    MPI_Datatype type; // our duplicate: the user may free his
} owner_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static owner_t *waiting;

static void
release_now(owner_t *owner)
{
    if (owner->viewed)
        wm_view_release(&owner->view);
    if (owner->raw.obj != NULL)
        PyBuffer_Release(&owner->raw);
    if (owner->packed != NULL && owner->type != MPI_DATATYPE_NULL
        && wm_engine_check(NULL) == 0)
        MPI_Type_free(&owner->type);
    free(owner->packed);
    free(owner);
}

static int
release_waiting(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    owner_t *list = waiting;
    waiting = NULL;
    pthread_mutex_unlock(&lock);
    while (list != NULL) {
        owner_t *next = list->next;
        release_now(list);
        list = next;
    }
    return 0;
}

static void
release_owner(void *argument)
{
    owner_t *owner = argument;
    if (!Py_IsInitialized()) // the process ends
        return;
    if (atomic_fetch_sub(&owner->uses, 1) > 1)
        return;
    if (PyGILState_Check()) {
        release_now(owner);
        return;
    }
    pthread_mutex_lock(&lock);
    bool first = waiting == NULL;
    owner->next = waiting;
    waiting = owner;
    pthread_mutex_unlock(&lock);
    if (first)
        Py_AddPendingCall(release_waiting, NULL);
}

// What was received goes to the user's memory.
static void
unpack(void *argument, size_t nbytes)
{
    owner_t *owner = argument;
    int position = 0;
    MPI_Unpack(owner->packed, (int)owner->packed_bytes, &position, owner->user,
               (int)(nbytes / owner->size), owner->type, MPI_COMM_SELF);
}

// The parts of a specification; borrowed.
typedef struct {
    PyObject *array, *count, *displacement, *datatype;
} parts_t;

static bool
is_type(PyObject *object)
{
    return PyUnicode_Check(object) || wm_mpi_is_datatype(object);
}

static int
split(PyObject *object, const char *argument, parts_t *parts)
{
    *parts = (parts_t){.array = object};
    if (!PyList_Check(object) && !PyTuple_Check(object))
        return 0;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(object);
    PyObject **items = PySequence_Fast_ITEMS(object);
    if (length < 1 || length > 4) {
        PyErr_Format(PyExc_ValueError,
                     "%s: expected [array, count, datatype] with 1 to 4 "
                     "items, not %zd",
                     argument, length);
        return -1;
    }
    parts->array = items[0];
    if (length == 2)
        *(is_type(items[1]) ? &parts->datatype : &parts->count) = items[1];
    if (length > 2) {
        parts->count = items[1];
        parts->datatype = items[length - 1];
    }
    if (length == 4)
        parts->displacement = items[2];
    if (parts->count != NULL && PyTuple_Check(parts->count)
        && PyTuple_GET_SIZE(parts->count) == 2 && length < 4) {
        parts->displacement = PyTuple_GET_ITEM(parts->count, 1);
        parts->count = PyTuple_GET_ITEM(parts->count, 0);
    }
    if (parts->count == Py_None)
        parts->count = NULL;
    if (parts->displacement == Py_None)
        parts->displacement = NULL;
    if (parts->datatype == Py_None)
        parts->datatype = NULL;
    if (parts->datatype != NULL && !is_type(parts->datatype)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: the datatype must be an MPI.Datatype or a type "
                     "code, not %.100s",
                     argument, Py_TYPE(parts->datatype)->tp_name);
        return -1;
    }
    return 0;
}

static int
number(PyObject *object, const char *argument, const char *what,
       Py_ssize_t *value)
{
    if (object == NULL)
        return 0;
    Py_ssize_t result = PyNumber_AsSsize_t(object, PyExc_OverflowError);
    if (result == -1 && PyErr_Occurred())
        return -1;
    if (result < 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the %s is %zd; it must be 0 or "
                     "more",
                     argument, what, result);
        return -1;
    }
    *value = result;
    return 0;
}

// Whether DLPack's own word for where it is is anything but the host.
static bool
claims_device(PyObject *object)
{
    PyObject *place = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    bool device = false;
    if (place != NULL && PyTuple_Check(place) && PyTuple_GET_SIZE(place) > 0)
        switch (PyLong_AsLong(PyTuple_GET_ITEM(place, 0))) {
        case WM_DL_CPU:
        case WM_DL_CUDA_HOST:
            break;
        default:
            device = true;
        }
    Py_XDECREF(place);
    PyErr_Clear();
    return device;
}

// The MPI type that mpi4py finds for elements of one letter; NULL without an
// exception where there is none.
static PyObject *
discover(const Py_buffer *raw)
{
    const char *format = raw->format != NULL ? raw->format : "B";
    PyObject *code = PyUnicode_FromString(
        *format == '@' || *format == '<' ? format + 1 : format);
    PyObject *type = code != NULL ? wm_mpi_datatype_from_code(code) : NULL;
    Py_XDECREF(code);
    PyErr_Clear();
    return type;
}

// Raw host bytes, whose MPI type is given or found: what has no dtype of ours
// (long double, structures, text) is MPI's alone. 0 with the buffer filled, or
// -1, perhaps with an exception.
static int
look_raw(const parts_t *parts, bool writable, owner_t *owner,
         wm_message_t *message)
{
    wm_error_t err;
    PyObject *array = parts->array, *wrapped = NULL;
    int flags = (writable ? PyBUF_WRITABLE : 0) | PyBUF_ANY_CONTIGUOUS
                | PyBUF_FORMAT;
    if (!PyObject_CheckBuffer(array)) {
        if (parts->datatype == NULL || claims_device(array)
            || PyObject_HasAttrString(array, "__cuda_array_interface__"))
            return -1;
        // mpi4py's own reading of DLPack
        array = wrapped = wm_mpi_buffer(array, !writable);
    }
    // NumPy has no format for dates, which a given type makes up for.
    if (parts->datatype != NULL)
        flags &= ~PyBUF_FORMAT;
    int code = array == NULL ? -1
                             : PyObject_GetBuffer(array, &owner->raw, flags);
    if (code < 0 && (array == NULL || parts->datatype == NULL))
        PyErr_Clear();
    Py_XDECREF(wrapped);
    if (code < 0)
        return -1;
    if (parts->datatype == NULL
        && (message->datatype = discover(&owner->raw)) == NULL)
        return -1;
    wm_buffer_t *buffer = &message->buffer;
    if (wm_pointer_describe(owner->raw.buf, &buffer->memory, &err) < 0) {
        wm_raise(&err);
        return -1;
    }
    buffer->data = owner->raw.buf;
    return wm_buffer_on_device(buffer) ? -1 : 0;
}

// The array as memory, else as raw host bytes. What is neither is refused in
// the words of the first.
static int
look(const parts_t *parts, bool writable, const char *argument, owner_t *owner,
     wm_message_t *message, size_t *length)
{
    wm_buffer_t *buffer = &message->buffer;
    if (wm_view_parse(parts->array, writable, argument, &owner->view) == 0) {
        wm_view_t *view = &owner->view;
        owner->viewed = true;
        if (!wm_array_is_contiguous(&view->array)
            && !wm_array_is_f_contiguous(&view->array)) {
            PyErr_Format(PyExc_ValueError,
                         "%s: the array is not contiguous; %s", argument,
                         writable ? "receive into a contiguous one and assign "
                                    "it"
                                  : "send a contiguous copy (.copy())");
            return -1;
        }
        buffer->data = view->array.data;
        buffer->memory = view->memory;
        buffer->producer = view->producer;
        buffer->order = view->producer.order;
        *length = wm_array_nbytes(&view->array);
        return 0;
    }
    PyObject *kind, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_TypeError))
        return -1;
    PyErr_Fetch(&kind, &value, &trace);
    int code = look_raw(parts, writable, owner, message);
    if (code < 0 && !PyErr_Occurred()) {
        PyErr_Restore(kind, value, trace);
        return -1;
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    *length = (size_t)owner->raw.len;
    return code;
}

// What is sent is copied from the user's memory.
static void
fill(const owner_t *owner)
{
    int position = 0;
    MPI_Pack(owner->user, (int)(owner->packed_bytes / owner->size),
             owner->type, owner->packed, (int)owner->packed_bytes, &position,
             MPI_COMM_SELF);
}

// A copy without gaps of host memory whose datatype has some.
static int
pack(wm_message_t *message, bool writable, const char *argument)
{
    wm_buffer_t *buffer = &message->buffer;
    owner_t *owner = buffer->owner;
    if (buffer->nbytes == 0)
        return 0;
    owner->user = buffer->data;
    owner->type = MPI_DATATYPE_NULL;
    owner->packed = malloc(buffer->nbytes);
    if (owner->packed == NULL || message->count > INT_MAX
        || buffer->nbytes > INT_MAX) {
        PyErr_Format(PyExc_MemoryError,
                     "%s: a derived datatype of %zu bytes cannot be packed",
                     argument, buffer->nbytes);
        return -1;
    }
    MPI_Type_dup(message->type, &owner->type);
    owner->packed_bytes = buffer->nbytes;
    owner->size = message->size;
    buffer->data = owner->packed;
    buffer->arrived = writable ? unpack : NULL;
    if (!writable)
        fill(owner);
    return 0;
}

// Count, displacement and type: which bytes of the memory they mean.
static int
apply(const parts_t *parts, size_t length, const char *argument,
      const owner_t *owner, wm_message_t *message)
{
    MPI_Aint low = 0, extent = 1, reach = 1;
    int size = 1;
    Py_ssize_t displacement = 0, count = -1;
    if (parts->datatype != NULL)
        message->datatype = PyUnicode_Check(parts->datatype)
                                ? wm_mpi_datatype_from_code(parts->datatype)
                                : Py_NewRef(parts->datatype);
    if (parts->datatype != NULL || message->datatype != NULL) {
        if (message->datatype == NULL
            || wm_mpi_datatype(message->datatype, argument, &message->type)
                   < 0)
            return -1;
        if (message->type == MPI_DATATYPE_NULL) {
            PyErr_Format(PyExc_ValueError,
                         "%s: the datatype is "
                         "MPI.DATATYPE_NULL",
                         argument);
            return -1;
        }
        MPI_Type_get_true_extent(message->type, &low, &reach);
        reach += low;
        MPI_Type_get_extent(message->type, &low, &extent);
        MPI_Type_size(message->type, &size);
    }
    else if (owner->viewed) {
        size = wm_dtype_info(owner->view.array.dtype)->itemsize;
        message->type = wm_datatype_of(owner->view.array.dtype);
        extent = reach = size;
    }
    if (number(parts->count, argument, "count", &count) < 0
        || number(parts->displacement, argument, "displacement", &displacement)
               < 0)
        return -1;
    size_t step = extent > 0 ? (size_t)extent : 1;
    size_t skipped = (size_t)displacement * step;
    if (skipped > length) {
        PyErr_Format(PyExc_ValueError,
                     "%s: displacement %zd is beyond the end of the buffer of "
                     "%zu bytes",
                     argument, displacement, length);
        return -1;
    }
    if (count < 0) {
        if ((length - skipped) % step != 0) {
            PyErr_Format(PyExc_ValueError,
                         "%s: %zu bytes are no whole number of elements of "
                         "%zu bytes; give a count",
                         argument, length - skipped, step);
            return -1;
        }
        count = (Py_ssize_t)((length - skipped) / step);
    }
    else if ((size_t)count > (length - skipped) / step
             // the last element need not fill its extent
             && (size_t)count * step
                    > length - skipped + step - (size_t)reach) {
        PyErr_Format(PyExc_ValueError,
                     "%s: %zd elements of %zu bytes do not fit the buffer of "
                     "%zu bytes",
                     argument, count, step, length - skipped);
        return -1;
    }
    message->buffer.data += skipped;
    message->buffer.nbytes = (size_t)count * (size_t)size;
    message->size = (size_t)size;
    message->extent = step;
    message->count = count;
    if (message->datatype == NULL || wm_datatype_is_dense(message->type))
        return 0;
    if (wm_buffer_on_device(&message->buffer)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: derived datatypes over GPU memory are not "
                     "supported; send a contiguous copy",
                     argument);
        return -1;
    }
    message->user = message->buffer.data;
    return 0;
}

int
wm_message_parse_typed(PyObject *object, bool writable, const char *argument,
                       wm_message_t *message)
{
    parts_t parts;
    if (waiting != NULL)
        release_waiting(NULL);
    if (split(object, argument, &parts) < 0)
        return -1;
    if (wm_mpi_is_bottom(parts.array) || wm_mpi_is_in_place(parts.array)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: MPI.%s cannot be used here; give the array itself",
                     argument,
                     wm_mpi_is_bottom(parts.array) ? "BOTTOM" : "IN_PLACE");
        return -1;
    }
    owner_t *owner = calloc(1, sizeof *owner);
    if (owner == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    atomic_store(&owner->uses, 1);
    *message = (wm_message_t){.type = MPI_BYTE, .size = 1};
    message->buffer.owner = owner;
    message->buffer.release = release_owner;
    message->buffer.memory.device = -1;
    size_t length = 0;
    if ((parts.array == Py_None
         || look(&parts, writable, argument, owner, message, &length) == 0)
        && apply(&parts, length, argument, owner, message) == 0)
        return 0;
    wm_message_release(message);
    return -1;
}

int
wm_message_parse(PyObject *object, bool writable, const char *argument,
                 wm_message_t *message)
{
    if (wm_message_parse_typed(object, writable, argument, message) < 0)
        return -1;
    if (message->user == NULL || pack(message, writable, argument) == 0)
        return 0;
    wm_message_release(message);
    return -1;
}

wm_buffer_t
wm_message_take(wm_message_t *message)
{
    wm_buffer_t buffer = message->buffer;
    message->buffer.release = NULL;
    return buffer;
}

int
wm_message_again(PyObject *array, bool writable, const char *argument,
                 const wm_message_t *message, wm_buffer_t *buffer)
{
    owner_t *owner = message->buffer.owner;
    wm_producer_t producer = message->buffer.producer;
    bool follows = owner->viewed && owner->packed == NULL
                   && (producer.kind != WM_PRODUCER_NONE
                       || wm_buffer_on_device(&message->buffer));
    if (waiting != NULL)
        release_waiting(NULL);
    if (follows
        && wm_view_refresh(array, argument, owner->view.array.data, &producer)
               < 0)
        return -1;
    if (owner->packed != NULL && !writable)
        fill(owner);
    atomic_fetch_add(&owner->uses, 1);
    *buffer = message->buffer;
    buffer->producer = producer;
    buffer->order = follows ? producer.order : buffer->order;
    return 0;
}

void
wm_message_release(wm_message_t *message)
{
    wm_buffer_release(&message->buffer);
    Py_CLEAR(message->datatype);
}

bool
wm_message_on_device(PyObject *object)
{
    wm_view_t view;
    if (object == Py_None || PyLong_Check(object) || is_type(object)
        || wm_mpi_is_bottom(object) || wm_mpi_is_in_place(object))
        return false;
    if (PyList_Check(object) || PyTuple_Check(object)) {
        if (PySequence_Fast_GET_SIZE(object) == 0)
            return false;
        object = PySequence_Fast_GET_ITEM(object, 0);
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    bool device;
    if (wm_view_parse(object, false, "buffer", &view) == 0) {
        device = view.memory.kind == WM_MEMORY_DEVICE
                 || view.memory.kind == WM_MEMORY_MANAGED;
        wm_view_release(&view);
    }
    else {
        // Not understood: what claims to be of a GPU is taken for it.
        PyErr_Clear();
        device = PyObject_HasAttrString(object, "__cuda_array_interface__")
                 || claims_device(object);
    }
    PyErr_Restore(kind, value, trace);
    return device;
}
