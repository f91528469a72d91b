// SPDX-License-Identifier: BSD-3-Clause
// The memory of a shared array, which its arrays keep alive, and the calls of
// wm.SharedArray (warpmpi/_shared.py).
#include <string.h>

#include "comm/comm/host_only.h"
#include "comm/diagnostics/hang.h"
#include "comm/rma/shared_array.h"
#include "cuda/memory.h"
#include "python/array/py_array.h"
#include "python/core/arguments.h"
#include "python/core/mpi4py.h"
#include "python/device/py_device.h"
#include "python/device/py_stream.h"
#include "python/view/py_dtype.h"
#include "python/view/view_parts.h"

typedef struct {
    PyObject_HEAD
    wm_shared_array_t *shared;
    PyObject *comm;
} wm_py_shared_t;

static wm_shared_array_t *
shared_of(PyObject *self)
{
    return ((wm_py_shared_t *)self)->shared;
}

static PyObject *
shared_none(PyObject *self, int code, const wm_error_t *err)
{
    if (code == 0)
        Py_RETURN_NONE;
    (void)wm_py_raise(err);
    MPI_Comm handle;
    PyObject *comm = ((wm_py_shared_t *)self)->comm;
    if (code == WM_ERR_MPI && wm_py_mpi_is_comm(comm, &handle)
        && handle != MPI_COMM_NULL)
        wm_py_mpi_call_handler(handle, false);
    return NULL;
}

// Finds the communicator, and attaches it if no call of ours has done so.
static int
find_comm(PyObject *object, wm_comm_t **comm)
{
    MPI_Comm handle;
    wm_error_t err;
    int code;
    if (wm_py_mpi_comm(object, "comm", &handle) < 0
        || wm_py_check_running() < 0)
        return -1;
    if (handle == MPI_COMM_NULL)
        return wm_py_mpi_fail(MPI_ERR_COMM,
                              "comm: it is MPI.COMM_NULL, or was freed");
    WM_PY_UNLOCKED(code = wm_host_only_attach_too(handle, comm, &err));
    return wm_py_result(code, &err);
}

static int
read_wish(PyObject *shape, PyObject *dtype, PyObject *device,
          wm_shared_wish_t *wish)
{
    return wm_py_array_parse_shape(shape, "shape", &wish->ndim, wish->shape)
                       < 0
                   || wm_py_dtype_from_object(dtype, &wish->dtype) < 0
                   || wm_py_device_from_object(device, &wish->device) < 0
               ? -1
               : 0;
}

// Makes the memory without the GIL.
static int
shared_make(wm_comm_t *comm, const wm_shared_wish_t *wish,
            wm_shared_array_t **made)
{
    wm_error_t err;
    int code;
    wm_hang_call(wish->call, true);
    WM_PY_UNLOCKED(code = wm_shared_array_make(comm, wish, made, &err));
    wm_waiting_call.name = NULL;
    return code == WM_ERR_PYTHON ? -1 : wm_py_result(code, &err);
}

PyDoc_STRVAR(
    share_doc,
    "_share(call, comm, shape, dtype, device, slots, failure, /)\n--\n\n"
    "Make the memory of a shared array; collective. failure: why this\n"
    "rank cannot take part, for the other ranks; then None is returned.");

static PyObject *
share(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *shape, *dtype, *device;
    wm_shared_wish_t wish = {0};
    wm_shared_array_t *made = NULL;
    wm_comm_t *comm;
    if (!PyArg_ParseTuple(args, "sOOOOiz:_share", &wish.call, &object, &shape,
                          &dtype, &device, &wish.slots, &wish.failure))
        return NULL;
    if (wish.failure == NULL && read_wish(shape, dtype, device, &wish) < 0)
        return NULL;
    if (find_comm(object, &comm) < 0)
        return NULL;
    if (shared_make(comm, &wish, &made) < 0) {
        if (wish.failure == NULL)
            return NULL;
        PyErr_Clear(); // the caller raises what the failure was
        Py_RETURN_NONE;
    }
    wm_py_shared_t *self = PyObject_GC_New(wm_py_shared_t,
                                           wm_py_state->shared_type);
    if (self == NULL) {
        wm_shared_array_drop(made);
        return NULL;
    }
    self->shared = made;
    self->comm = Py_NewRef(object);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static void
shared_dealloc(PyObject *object)
{
    wm_py_shared_t *self = (wm_py_shared_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wm_shared_array_drop(self->shared);
    Py_XDECREF(self->comm);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// There is no clear slot: as with a tuple, another object of a cycle is
// cleared.
static int
shared_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((wm_py_shared_t *)object)->comm);
    return 0;
}

static PyObject *
wrap(PyObject *self, wm_array_t *view)
{
    const wm_shared_array_t *shared = shared_of(self);
    int device = wm_shared_array_device(shared);
    wm_pointer_t memory = {.device = device};
    wm_error_t err;
    size_t nbytes = wm_array_nbytes(view);
    if (wm_shared_array_on_host(shared))
        memory = (wm_pointer_t){
            .kind = device >= 0 ? WM_MEMORY_PINNED : WM_MEMORY_HOST,
            .device = -1,
        };
    else if (wm_pointer_describe(view->data, &memory, &err) < 0)
        return wm_py_raise(&err);
    else
        memory.device = device; // the one that reaches it, and maps it
    if (wm_storage_wrap(view->data, nbytes, &memory, device, view->readonly,
                        Py_NewRef(self), wm_py_release_object, &view->storage,
                        &err)
        < 0) {
        Py_DECREF(self);
        return wm_py_raise(&err);
    }
    return wm_py_array_object(view);
}

// Reads an int that a rank, a slot or a value is.
static int
read_number(PyObject *object, const char *argument, int64_t *number)
{
    PyObject *index = PyNumber_Index(object);
    *number = index != NULL ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (*number != -1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        return wm_py_fail(PyExc_ValueError, "%s: %R is out of range", argument,
                          object);
    return wm_py_fail(PyExc_TypeError, "%s: an int is needed, not %.100s",
                      argument, Py_TYPE(object)->tp_name);
}

PyDoc_STRVAR(view_doc, "_view($self, rank, readonly, /)\n--\n\n"
                       "The array of a rank, as a wm.Array.");

static PyObject *
shared_view(PyObject *self, PyObject *args)
{
    PyObject *object;
    int64_t rank;
    int readonly;
    wm_array_t view;
    if (!PyArg_ParseTuple(args, "Op:_view", &object, &readonly)
        || read_number(object, "rank", &rank) < 0)
        return NULL;
    int size = wm_shared_array_size(shared_of(self));
    if (rank < 0 || rank >= size)
        return PyErr_Format(PyExc_ValueError,
                            "rank: there is no rank %lld, there are 0 to %d",
                            (long long)rank, size - 1);
    wm_shared_array_view(shared_of(self), (int)rank, &view);
    view.readonly = readonly != 0;
    return wrap(self, &view);
}

PyDoc_STRVAR(table_doc, "_table($self, /)\n--\n\n"
                        "The addresses of all ranks' arrays, by rank.");

static PyObject *
shared_table(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const wm_shared_array_t *shared = shared_of(self);
    wm_array_t view = {
        .data = (char *)(uintptr_t)wm_shared_array_pointers(shared),
        .dtype = WM_INT64,
        .readonly = true,
        .ndim = 1,
        .shape = {wm_shared_array_size(shared)},
        .strides = {sizeof(int64_t)},
    };
    return wrap(self, &view);
}

// Finds the stream of a call: None is the legacy default stream.
static int
find_stream(PyObject *self, PyObject *object, CUstream *stream)
{
    int own = wm_shared_array_device(shared_of(self)), device;
    *stream = CU_STREAM_LEGACY;
    if (object == NULL || object == Py_None)
        return 0;
    if (own < 0)
        return wm_py_fail(PyExc_ValueError,
                          "stream: the shared array is the CPU's, whose calls "
                          "have no stream");
    if (wm_py_stream_from_object(object, "stream", &device, stream) < 0)
        return -1;
    return device == own
               ? 0
               : wm_py_fail(PyExc_ValueError,
                            "stream: it is of cuda:%d, and the shared array "
                            "is of cuda:%d",
                            device, own);
}

PyDoc_STRVAR(signal_doc, "_signal($self, rank, slot, value, stream, /)\n--\n\n"
                         "Add to a slot of a rank.");

static PyObject *
shared_signal(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    int64_t rank, slot, value;
    CUstream stream;
    wm_error_t err;
    int code;
    if (given != 4)
        return PyErr_Format(PyExc_TypeError, "_signal takes 4 arguments");
    if (read_number(args[0], "rank", &rank) < 0
        || read_number(args[1], "slot", &slot) < 0
        || read_number(args[2], "value", &value) < 0
        || find_stream(self, args[3], &stream) < 0)
        return NULL;
    WM_PY_UNLOCKED(code = wm_shared_array_signal(shared_of(self), rank, slot,
                                                 value, stream, &err));
    return shared_none(self, code, &err);
}

PyDoc_STRVAR(wait_doc, "_wait($self, slot, value, consume, stream, /)\n--\n\n"
                       "Wait until a slot of this rank has the value.");

static PyObject *
shared_wait(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    int64_t slot, value;
    CUstream stream;
    wm_error_t err;
    int code, takes;
    if (given != 4)
        return PyErr_Format(PyExc_TypeError, "_wait takes 4 arguments");
    if (read_number(args[0], "slot", &slot) < 0
        || read_number(args[1], "value", &value) < 0
        || (takes = PyObject_IsTrue(args[2])) < 0
        || find_stream(self, args[3], &stream) < 0)
        return NULL;
    wm_waiting_call.name = "SharedArray.wait";
    WM_PY_UNLOCKED(code = wm_shared_array_wait(shared_of(self), slot, value,
                                               takes, stream, &err));
    wm_waiting_call.name = NULL;
    return shared_none(self, code, &err);
}

PyDoc_STRVAR(barrier_doc, "_barrier($self, stream, /)\n--\n\n"
                          "Wait until all ranks have called it.");

static PyObject *
shared_barrier(PyObject *self, PyObject *object)
{
    CUstream stream;
    wm_error_t err;
    int code;
    if (find_stream(self, object, &stream) < 0)
        return NULL;
    wm_waiting_call.name = "SharedArray.barrier";
    WM_PY_UNLOCKED(
        code = wm_shared_array_barrier(shared_of(self), stream, &err));
    wm_waiting_call.name = NULL;
    return shared_none(self, code, &err);
}

PyDoc_STRVAR(arrive_doc, "_arrive($self, failure, /)\n--\n\n"
                         "Wait on the host for all ranks; collective. If one\n"
                         "has failed, the others raise, and it returns.");

static PyObject *
shared_arrive(PyObject *self, PyObject *failure)
{
    wm_error_t err;
    const char *text = NULL;
    int code;
    if (failure != Py_None && (text = PyUnicode_AsUTF8(failure)) == NULL)
        return NULL;
    WM_PY_UNLOCKED(code = wm_shared_array_arrive(shared_of(self), text, &err));
    return text != NULL ? Py_NewRef(Py_None) : shared_none(self, code, &err);
}

static PyObject *
get_handle(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr(
        (void *)(uintptr_t)wm_shared_array_handle(shared_of(self)));
}

static PyObject *
get_rank(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(wm_shared_array_rank(shared_of(self)));
}

static PyObject *
get_size(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(wm_shared_array_size(shared_of(self)));
}

static PyObject *
get_slots(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(wm_shared_array_slots(shared_of(self)));
}

static PyObject *
get_device(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(wm_shared_array_device(shared_of(self)));
}

static PyObject *
get_on_host(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(wm_shared_array_on_host(shared_of(self)));
}

static PyGetSetDef getters[] = {
    {"_handle", get_handle, NULL, "What device functions are given.", NULL},
    {"_rank", get_rank, NULL, "This rank.", NULL},
    {"_size", get_size, NULL, "The number of ranks.", NULL},
    {"_slots", get_slots, NULL, "The number of slots.", NULL},
    {"_device", get_device, NULL, "The GPU's ordinal; -1: the CPU.", NULL},
    {"_on_host", get_on_host, NULL, "True if the memory is the host's.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"_view", shared_view, METH_VARARGS, view_doc},
    {"_table", shared_table, METH_NOARGS, table_doc},
    {"_signal", (PyCFunction)(void (*)(void))shared_signal, METH_FASTCALL,
     signal_doc},
    {"_wait", (PyCFunction)(void (*)(void))shared_wait, METH_FASTCALL,
     wait_doc},
    {"_barrier", shared_barrier, METH_O, barrier_doc},
    {"_arrive", shared_arrive, METH_O, arrive_doc},
    {0},
};

PyDoc_STRVAR(shared_doc, "The memory of a wm.SharedArray, on all ranks.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)shared_doc},   {Py_tp_dealloc, shared_dealloc},
    {Py_tp_traverse, shared_traverse}, {Py_tp_getset, getters},
    {Py_tp_methods, methods},          {0},
};

PyType_Spec wm_py_shared_spec = {
    .name = "warpmpi._core.SharedMemory",
    .basicsize = sizeof(wm_py_shared_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

PyMethodDef wm_py_shared_functions[] = {
    {"_share", share, METH_VARARGS, share_doc},
    {0},
};
