// SPDX-License-Identifier: BSD-3-Clause
// The core of warpmpi/_staging/: the staging copy in host memory that MPI is
// given for an array in GPU memory, the copies between both, and requests that
// end when received data was copied back from the staging copy.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/mpi/staged.h"
#include "comm/engine/stats.h"
#include "python/array/py_array.h"
#include "python/comm/reduced.h"
#include "python/core/mpi4py.h"
#include "python/message/channel.h"
#include "python/message/datatype.h"
#include "python/message/elements.h"
#include "python/message/raw.h"
#include "python/request/py_request.h"
#include "python/staging/runs.h"

// Returns how many MPI elements an element of the array is: its number of
// bytes, if MPI does not know the type.
static int64_t
each_of(const wm_array_t *array)
{
    return wm_py_datatype_of(array->dtype) == MPI_DATATYPE_NULL
               ? (int64_t)wm_dtype_info(array->dtype)->itemsize
               : 1;
}

PyDoc_STRVAR(
    stage_doc,
    "_stage(array, writable, name, strided, spoilt=False, /)\n--\n\n"
    "Return the staging copy of an array: a new flat array in host\n"
    "memory, page-locked for a GPU array. Its elements are the\n"
    "array's, or bytes if MPI has no such type.\n\n"
    "writable: the array will be written. strided: the array may have\n"
    "gaps; the copy then has its elements one after the other.\n"
    "spoilt: the copy is not page-locked, and is filled with bytes of\n"
    "255. Raises the exceptions of a message of the array, naming\n"
    "`name`, and wm.OutOfMemoryError.");

static bool
is_taken(const wm_view_t *view, bool writable, bool strided)
{
    wm_strided_t gaps;
    return wm_array_is_contiguous(&view->array)
           || wm_array_is_f_contiguous(&view->array)
           || (strided && wm_strided_from_array(&gaps, &view->array)
               && !(writable && wm_strided_repeats(&gaps)));
}

static PyObject *
stage(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    const char *name;
    int writable, strided, spoilt = 0;
    wm_view_t view;
    wm_array_t staging;
    if (!PyArg_ParseTuple(args, "Opsp|p:_stage", &object, &writable, &name,
                          &strided, &spoilt))
        return NULL;
    if (wm_py_view_parse(object, writable, name, &view) < 0) {
        wm_py_raw_judge(object, writable);
        return NULL;
    }
    int64_t each = each_of(&view.array);
    int64_t count = wm_array_count(&view.array) * each;
    wm_dtype_t dtype = each > 1 ? WM_UINT8 : view.array.dtype;
    int code = 0;
    if (!is_taken(&view, writable, strided))
        code = wm_py_fail(
            PyExc_ValueError, "%s: the array is not contiguous; %s", name,
            writable ? "receive into a contiguous array and assign that"
                     : "give a contiguous copy (.copy())");
    bool pinned = !spoilt && wm_memory_on_device(&view.memory);
    if (code == 0)
        code = wm_py_array_new_nogil(-1, pinned, dtype, 1, &count, &staging);
    wm_py_view_release(&view);
    if (code < 0)
        return NULL;
    if (spoilt)
        memset(staging.data, 255, wm_array_nbytes(&staging));
    return wm_py_array_object(&staging);
}

// Parses the array as memory, and its runs to copy. On success the caller
// releases the message.
static int
look(PyObject *object, PyObject *staging, PyObject *runs, bool writable,
     const char *name, wm_message_t *message, wm_staged_t **staged)
{
    if (!PyObject_TypeCheck(staging, wm_py_state->array_type))
        return wm_py_fail(PyExc_TypeError, "staging: a wm.Array is expected");
    if (wm_py_message_parse_gaps(object, writable, name, WM_GAPS_OF_ANY_ARRAYS,
                                 message)
        < 0)
        return -1;
    const wm_array_t *host = wm_py_array_of(staging);
    if (message->buffer.nbytes != wm_array_nbytes(host))
        PyErr_Format(
            PyExc_ValueError,
            "%s: the array has %zu bytes now, and had %zu bytes when the call "
            "was made: do not resize the array while its request exists",
            name, message->buffer.nbytes, wm_array_nbytes(host));
    else
        *staged = wm_py_runs_read(runs, host->data, message->buffer.nbytes);
    if (PyErr_Occurred()) {
        wm_py_message_release(message);
        return -1;
    }
    return 0;
}

// Reads an average: None, or an element type (_averaged) and a number of
// ranks.
static int
read_average(PyObject *average, wm_staged_t *staged)
{
    int type;
    if (average == Py_None)
        return 0;
    if (!PyArg_ParseTuple(average, "ii:average", &type,
                          &staged->average.ranks))
        return -1;
    staged->average.type = (wm_reduce_type_t)type;
    if (wm_reduce_takes(staged->average.type, WM_REDUCE_AVG))
        return 0;
    return wm_py_fail(PyExc_ValueError, "average: no such type");
}

PyDoc_STRVAR(
    stage_copy_doc,
    "_stage_copy(array, staging, runs, to_host, name, average=None, /)\n"
    "--\n\n"
    "Copy runs of bytes between an array and its staging copy. The\n"
    "copy is complete when the call returns.\n\n"
    "runs: those of _runs, or (offset, bytes). If CUDA fails on\n"
    "the way to the host, raises wm.CudaError and leaves bytes of 255\n"
    "in the staging copy. average: the type of _averaged and a number of\n"
    "ranks, by which the staging copy is divided first; or None.");

static PyObject *
stage_copy(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object, *staging, *runs, *average = Py_None;
    const char *name;
    int to_host, code;
    wm_message_t message;
    wm_staged_t *staged;
    wm_error_t err;
    if (!PyArg_ParseTuple(args, "OOOps|O:_stage_copy", &object, &staging,
                          &runs, &to_host, &name, &average)
        || look(object, staging, runs, !to_host, name, &message, &staged) < 0)
        return NULL;
    if (read_average(average, staged) < 0) {
        free(staged);
        wm_py_message_release(&message);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    wm_staged_divide(staged);
    code = wm_staged_copy(&message.buffer, staged, to_host, &err);
    if (code < 0 && to_host)
        memset(staged->staging, 255, message.buffer.nbytes);
    Py_END_ALLOW_THREADS;
    free(staged);
    wm_py_message_release(&message);
    return wm_py_none(code, &err);
}

// Makes a request of ours over an MPI request, whose handle is taken over
// unless it is persistent. `into`, unless None, is the wm.Prequest to become
// this request.
static PyObject *
begin(wm_comm_t *comm, wm_message_t *message, wm_staged_t *staged,
      PyMPIRequestObject *inner, PyObject *into)
{
    wm_buffer_t buffer = wm_py_message_detach(message);
    MPI_Request handle = inner->ob_mpi;
    wm_op_t *op;
    wm_error_t err;
    int code;
    if (!PyObject_TypeCheck((PyObject *)inner, wm_py_mpi_prequest_type()))
        inner->ob_mpi = MPI_REQUEST_NULL;
    WM_PY_UNLOCKED(
        code = wm_staged_begin(comm, &buffer, staged, handle, &op, &err));
    if (code == 0 && into == Py_None)
        return wm_py_request_new(op, MPI_REQUEST_NULL, message);
    wm_py_message_release(message);
    if (code < 0)
        return wm_py_raise(&err);
    wm_request_t *request = (wm_request_t *)into;
    wm_py_request_forget(request); // MPI itself has waited for it
    return wm_py_request_begun(request, op, MPI_REQUEST_NULL) < 0
               ? NULL
               : Py_NewRef(into);
}

PyDoc_STRVAR(
    staged_doc,
    "_staged(request, array, staging, runs, keep, into, name, comm, cancels, "
    "average=None, refused=False, /)\n"
    "--\n\n"
    "A wm.Request that ends when `request`, which is taken over, has\n"
    "ended and the runs of `staging` are in the array; staging None: none\n"
    "are.\n\n"
    "keep: what is let go of then. into: None, or the wm.Prequest to\n"
    "become the request. A persistent `request` is not taken over. comm:\n"
    "None, or the communicator of ours that is kept until then. cancels: it\n"
    "is a message's. average: as that of _stage_copy. refused: it raises\n"
    "StagingError at its end.");

static PyObject *
staged(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *inner, *object, *staging, *runs, *keep, *into, *comm,
        *average = Py_None;
    const char *name;
    int cancels, refused = 0;
    wm_message_t message;
    wm_staged_t *staged = NULL;
    wm_channel_t channel = {.comm = NULL};
    if (!PyArg_ParseTuple(args, "O!OOOOOsOp|Op:_staged",
                          wm_py_mpi_request_type(), &inner, &object, &staging,
                          &runs, &keep, &into, &name, &comm, &cancels,
                          &average, &refused))
        return NULL;
    if (comm != Py_None && wm_py_channel_get(comm, &channel) < 0)
        return NULL;
    if (into != Py_None
        && !PyObject_TypeCheck(into, wm_py_state->request_type))
        return PyErr_Format(PyExc_TypeError, "into: a wm.Request is expected");
    PyObject *failure = NULL;
    if (staging != Py_None
        && look(object, staging, runs, true, name, &message, &staged) < 0) {
        // MPI's request is under way nevertheless, and completes by itself.
        failure = PyErr_GetRaisedException();
        staging = Py_None;
    }
    if (staging == Py_None
        && ((staged = calloc(1, sizeof *staged)) == NULL
            || wm_py_message_of_none(keep, &message) < 0)) {
        free(staged);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    if (staging != Py_None)
        wm_py_message_keep(&message, keep);
    if (staging != Py_None && read_average(average, staged) < 0) {
        free(staged);
        wm_py_message_release(&message);
        return NULL;
    }
    staged->cancels = cancels;
    staged->refused = refused;
    PyObject *result = begin(channel.comm, &message, staged,
                             (PyMPIRequestObject *)inner, into);
    if (failure != NULL) {
        Py_CLEAR(result);
        PyErr_SetRaisedException(failure);
    }
    return result;
}

typedef struct {
    bool copied; // the array exports a copy of its memory
    bool gaps;   // it is in host memory, and has gaps between its bytes
} odd_t;

static bool
has_gaps(const wm_view_t *view)
{
    return !wm_memory_on_device(&view->memory)
           && wm_array_count(&view->array) > 0
           && !wm_array_is_contiguous(&view->array)
           && !wm_array_is_f_contiguous(&view->array);
}

// Returns how many MPI elements an element is of an array that mpi4py is
// given, and writes how many elements the array has. Returns -1 with an
// exception for an unknown array, and if the array's own code raises one; 1,
// with 0 elements, for most arrays. *odd gets other facts.
static int64_t
inner_of(PyObject *value, const char *name, int64_t *count, odd_t *odd)
{
    wm_view_t view;
    *count = 0;
    *odd = (odd_t){false, false};
    if (value == Py_None || wm_py_mpi_is_in_place(value))
        return 1;
    PyObject *array = Py_NewRef(wm_py_message_array(value));
    int64_t each = 1;
    if (wm_py_view_parse(array, false, name, &view) == 0) {
        each = wm_py_view_inner(array, &view.array) * each_of(&view.array);
        if (each > 1)
            *count = wm_array_count(&view.array) * each_of(&view.array) / each;
        odd->copied = wm_py_view_is_copy(&view);
        odd->gaps = has_gaps(&view);
        wm_py_view_release(&view);
    }
    else if (wm_py_view_is_peculiar(array) || wm_py_drop_refusal() < 0)
        each = -1; // else mpi4py may know more
    Py_DECREF(array);
    return each;
}

// Refuses an object that exports copies: mpi4py asks for the object's own
// memory, and does not check. Returns 0 if the object then gives this.
static int
refuse_copies(PyObject *value, const char *name)
{
    wm_view_t view;
    PyObject *array = Py_NewRef(wm_py_message_array(value));
    int code = wm_py_view_parse(array, true, name, &view);
    if (code == 0)
        wm_py_view_release(&view);
    Py_DECREF(array);
    return code;
}

// Returns true for host memory that work on a device may use. mpi4py waits
// for our own work, by the buffer protocol.
static bool
is_awaited(const wm_pointer_t *memory, const wm_producer_t *producer)
{
    return !wm_memory_on_device(memory)
           && (producer->kind == WM_PRODUCER_STREAM
               || producer->kind == WM_PRODUCER_DEVICE);
}

// Returns true if only the code of the array's own class tells its memory.
static bool
runs_code(PyObject *array)
{
    return array != Py_None && !wm_py_mpi_is_in_place(array)
           && !wm_py_mpi_is_bottom(array) && wm_py_view_runs_code(array);
}

// Looks at a buffer that has no origin.
static PyObject *
look_at_array(PyObject *value, const char *name)
{
    int64_t count, each = 1;
    odd_t odd = {false, false};
    wm_pointer_t memory;
    wm_producer_t producer;
    bool peculiar = wm_py_view_is_peculiar(wm_py_message_array(value));
    if ((peculiar && inner_of(value, name, &count, &odd) < 0)
        || wm_py_message_look(value, &memory, &producer) < 0)
        return NULL;
    bool on_device = wm_memory_on_device(&memory);
    bool awaited = is_awaited(&memory, &producer);
    if (!on_device)
        each = inner_of(value, "buffer", &count, &odd);
    if (each < 0 && wm_py_drop_refusal() < 0) // the call reports others
        return NULL;
    bool concerns = on_device || awaited || peculiar || each > 1 || odd.copied
                    || odd.gaps;
    bool told = runs_code(wm_py_message_array(value));
    return Py_BuildValue("ONNNNN", Py_None, PyBool_FromLong(on_device),
                         PyBool_FromLong(concerns), PyBool_FromLong(awaited),
                         PyBool_FromLong(odd.gaps), PyBool_FromLong(told));
}

PyDoc_STRVAR(
    look_doc,
    "_look(value, form, name, reduces, /)\n--\n\n"
    "Look at a buffer of a call of MPI's, once for all: (origin, on_device,\n"
    "concerns, awaited, gaps, runs_code).\n\n"
    "origin: that of _origin. on_device: it is GPU memory. concerns: it must\n"
    "not go to MPI unchecked, being GPU memory, host memory that a device\n"
    "uses (awaited), an array of Warp, with a mask or in host memory with\n"
    "gaps (gaps), an array that exports a copy of its memory, or elements\n"
    "that mpi4py would count in bytes. runs_code: only the code of the\n"
    "array's own class tells its memory. form: as for _runs. Raises what the\n"
    "array's own code raises, ValueError for addresses in GPU memory and in\n"
    "other allocations, and, if the call reduces, TypeError for elements\n"
    "that MPI would reduce as bytes.");

static PyObject *
look_at(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *value, *result = NULL;
    const char *form, *name;
    int reduces;
    if (!PyArg_ParseTuple(args, "Ossp:_look", &value, &form, &name, &reduces))
        return NULL;
    PyObject *origin = wm_py_runs_origin(value, form);
    if (origin == Py_None
        && (!reduces || wm_py_reduced_refuse_bytes(value, name) == 0))
        result = look_at_array(value, name);
    else if (origin != NULL && origin != Py_None) {
        int on_device = wm_py_runs_on_device(value, PyLong_AsSsize_t(origin),
                                             form, name);
        if (on_device >= 0)
            result = Py_BuildValue(
                "ONNOOO", origin, PyBool_FromLong(on_device),
                PyBool_FromLong(on_device), Py_False, Py_False, Py_False);
    }
    Py_XDECREF(origin);
    return result;
}

PyDoc_STRVAR(
    settle_doc,
    "_settle(value, /)\n--\n\n"
    "Wait for the device work on a buffer that the host will use, if\n"
    "there may be any. Raises wm.CudaError.");

static PyObject *
settle(PyObject *Py_UNUSED(module), PyObject *value)
{
    wm_buffer_t buffer = {.memory = {.kind = WM_MEMORY_HOST, .device = -1}};
    wm_pointer_t memory;
    wm_view_t view;
    wm_error_t err;
    int code = 0;
    PyObject *array = Py_NewRef(wm_py_message_array(value));
    int looked = wm_py_message_look(array, &memory, &buffer.producer);
    if (wm_memory_on_device(&memory)
        && buffer.producer.kind == WM_PRODUCER_NONE) {
        // Nothing was read, perhaps. A wait for a stream that cannot be known
        // has failed.
        if (wm_py_view_parse(array, false, "buffer", &view) < 0) {
            Py_DECREF(array);
            return NULL;
        }
        wm_py_view_release(&view);
    }
    memory = buffer.memory; // that of a GPU is waited for as well
    if (looked == 0 && is_awaited(&memory, &buffer.producer))
        WM_PY_UNLOCKED(
            code = wm_staged_await(&buffer, &buffer.producer, true, &err));
    Py_DECREF(array);
    return looked < 0 ? NULL : wm_py_none(code, &err);
}

PyDoc_STRVAR(copy_datatype_doc,
             "_copy_datatype(datatype, /)\n--\n\n"
             "Return a datatype with the same elements, without attributes,\n"
             "and committed if the other is. The caller frees it.");

static PyObject *
copy_datatype(PyObject *Py_UNUSED(module), PyObject *datatype)
{
    MPI_Datatype type, copy;
    if (wm_py_mpi_datatype(datatype, "datatype", &type) < 0
        || wm_py_datatype_copy(type, "datatype", &copy) < 0)
        return NULL;
    return wm_py_mpi_datatype_new(copy);
}

PyDoc_STRVAR(
    inner_doc,
    "_inner(value, name, writable, /)\n--\n\n"
    "How many elements of MPI's one of a buffer's is, and how many the\n"
    "buffer has of its own: (3, n) for Warp's vec3, (2, n) for bfloat16,\n"
    "which MPI knows as bytes. (1, 0) of what MPI counts likewise.\n"
    "TypeError, naming `name`, for masked arrays and Warp's structs,\n"
    "BufferError where writable, for what only exports copies.");

static PyObject *
inner(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *value;
    const char *name;
    int writable;
    int64_t count;
    odd_t odd;
    if (!PyArg_ParseTuple(args, "Osp:_inner", &value, &name, &writable))
        return NULL;
    int64_t each = inner_of(value, name, &count, &odd);
    if (odd.copied && writable && refuse_copies(value, name) < 0)
        return NULL;
    return each < 0 ? NULL
                    : Py_BuildValue("LL", (long long)each, (long long)count);
}

PyDoc_STRVAR(count_staged_doc, "_count_staged(collective, /)\n--\n\n"
                               "Count a staged call in stats().");

static PyObject *
count_staged(PyObject *Py_UNUSED(module), PyObject *collective)
{
    wm_stat_add(collective == Py_True ? WM_STAT_staged_collectives
                                      : WM_STAT_staged_calls,
                1);
    Py_RETURN_NONE;
}

PyMethodDef wm_py_staged_functions[] = {
    {"_stage", stage, METH_VARARGS, stage_doc},
    {"_stage_copy", stage_copy, METH_VARARGS, stage_copy_doc},
    {"_staged", staged, METH_VARARGS, staged_doc},
    {"_look", look_at, METH_VARARGS, look_doc},
    {"_settle", settle, METH_O, settle_doc},
    {"_copy_datatype", copy_datatype, METH_O, copy_datatype_doc},
    {"_inner", inner, METH_VARARGS, inner_doc},
    {"_count_staged", count_staged, METH_O, count_staged_doc},
    {0},
};
