// SPDX-License-Identifier: BSD-3-Clause
// warpmpi._core.HaloCalls: the calls of a wm.Halo that find and launch. What
// no exchange waits for is in warpmpi/_halo.py.
#include "comm/coll/call/reducible.h"
#include "comm/rma/halo_exchange.h"
#include "comm/comm/host_only.h"
#include "comm/diagnostics/hang.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "python/core/arguments.h"
#include "python/core/mpi4py.h"
#include "python/device/py_stream.h"
#include "python/view/view.h"

typedef struct {
    PyObject_HEAD
    wm_halo_t *halo; // NULL: not opened, or freed
    wm_halo_shape_t shape;
    int rank;
    int calls; // of other threads, too, that are under way
    bool freed;
} wm_py_halo_t;

// The arguments of a call.
typedef struct {
    PyObject *const *objects; // borrowed
    wm_view_t views[WM_HALO_FIELDS];
    wm_halo_field_t fields[WM_HALO_FIELDS];
    PyObject *stream_object; // borrowed; None: none
    wm_halo_call_t call;     // of `fields`
} call_t;

PyDoc_STRVAR(halo_open_doc,
             "_open($self, comm, rank, ndim, dims, periods, low, high, "
             "corners, block, lines, /)\n"
             "--\n\n"
             "Begin with a communicator, also with one without GPUs.");

// Makes the halo of a communicator, also of one without GPUs.
static int
open_attached(MPI_Comm handle, const wm_halo_shape_t *shape,
              const int64_t *block, int64_t lines, wm_halo_t **halo,
              wm_error_t *err)
{
    wm_comm_t *comm;
    int code = wm_host_only_attach_too(handle, &comm, err);
    return code < 0 ? code : wm_halo_new(comm, shape, block, lines, halo, err);
}

static PyObject *
halo_open(PyObject *object, PyObject *args)
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    wm_halo_shape_t s = {.ndim = 0};
    PyObject *comm, *block;
    MPI_Comm handle;
    wm_error_t err;
    int code, periodic[WM_HALO_DIMS], corners;
    long long low[WM_HALO_DIMS], high[WM_HALO_DIMS];
    long long told[WM_HALO_DIMS] = {0}, lines;
    int64_t cells[WM_HALO_DIMS];
    if (!PyArg_ParseTuple(args, "Oii(iii)(ppp)(LLL)(LLL)pOL:_open", &comm,
                          &self->rank, &s.ndim, &s.dims[0], &s.dims[1],
                          &s.dims[2], &periodic[0], &periodic[1], &periodic[2],
                          &low[0], &low[1], &low[2], &high[0], &high[1],
                          &high[2], &corners, &block, &lines)
        || (block != Py_None
            && !PyArg_ParseTuple(block, "LLL:_open", &told[0], &told[1],
                                 &told[2]))
        || wm_py_mpi_comm(comm, "cart", &handle) < 0
        || wm_py_check_running() < 0)
        return NULL;
    for (int d = 0; d < WM_HALO_DIMS; ++d) {
        s.periodic[d] = periodic[d] != 0;
        s.low[d] = low[d];
        s.high[d] = high[d];
        cells[d] = told[d];
    }
    s.corners = corners != 0;
    self->shape = s;
    WM_PY_UNLOCKED(code = open_attached(handle, &s,
                                        block != Py_None ? cells : NULL, lines,
                                        &self->halo, &err));
    return wm_py_none(code, &err);
}

PyDoc_STRVAR(
    halo_copies_doc,
    "_copies($self, cells, stagger, /)\n--\n\n"
    "Return the copies of a field: (direction, neighbour, edge, ghosts),\n"
    "where the last two are begins and extents of this rank's field. The\n"
    "neighbour in a direction fills the ghosts there.");

static PyObject *
box_tuple(const wm_halo_box_t *box)
{
    return Py_BuildValue("LLLLLL", (long long)box->from[0],
                         (long long)box->from[1], (long long)box->from[2],
                         (long long)box->extent[0], (long long)box->extent[1],
                         (long long)box->extent[2]);
}

// Appends the copy in a direction, if there is one: an edge without ghosts, or
// ghosts without an edge, where widths differ by side, have an empty partner.
static int
append_copy(wm_py_halo_t *self, const wm_halo_extents_t *extents,
            int direction, PyObject *list)
{
    wm_halo_box_t edge = {{0}, {0}}, ghosts = {{0}, {0}};
    int neighbor = wm_halo_neighbor(&self->shape, self->rank, direction);
    bool sends = wm_halo_edge(&self->shape, self->rank, extents, direction,
                              &edge);
    bool gets = wm_halo_ghosts(&self->shape, self->rank, extents, direction,
                               &ghosts);
    if (!sends && !gets)
        return 0;
    PyObject *row = Py_BuildValue(
        "iiNN", direction, neighbor,
        sends ? box_tuple(&edge) : Py_NewRef(Py_None),
        gets ? box_tuple(&ghosts) : Py_NewRef(Py_None));
    int code = row != NULL ? PyList_Append(list, row) : -1;
    Py_XDECREF(row);
    return code;
}

static PyObject *
halo_copies(PyObject *object, PyObject *args)
{
    wm_halo_extents_t extents;
    long long cells[WM_HALO_DIMS], stagger[WM_HALO_DIMS];
    if (!PyArg_ParseTuple(args, "(LLL)(LLL):_copies", &cells[0], &cells[1],
                          &cells[2], &stagger[0], &stagger[1], &stagger[2]))
        return NULL;
    for (int d = 0; d < WM_HALO_DIMS; ++d) {
        extents.cells[d] = cells[d];
        extents.stagger[d] = stagger[d];
    }
    PyObject *list = PyList_New(0);
    for (int at = 0; at < WM_HALO_DIRECTIONS && list != NULL; ++at)
        if (append_copy((wm_py_halo_t *)object, &extents, at, list) < 0)
            Py_CLEAR(list);
    return list;
}

static void
call_release(call_t *call)
{
    while (call->call.count > 0)
        wm_py_view_release(&call->views[--call->call.count]);
}

// Keeps the exception that is set, if it is the first one.
static void
keep_first(PyObject **first)
{
    PyObject *error = PyErr_GetRaisedException();
    if (*first == NULL)
        *first = error;
    else
        Py_XDECREF(error);
}

// Reads stream=.
static int
read_keywords(call_t *call, PyObject *const *values, PyObject *names)
{
    Py_ssize_t given = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < given; ++i) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "stream") != 0)
            return wm_py_fail(PyExc_TypeError,
                              "%R is no argument: fields are given by "
                              "position, and stream= names a stream",
                              name);
        call->stream_object = values[i];
    }
    return call->stream_object == Py_None
               ? 0
               : wm_py_stream_from_object(call->stream_object, "stream",
                                          &call->call.device,
                                          &call->call.stream);
}

// Reads all that are arrays.
static void
read_fields(call_t *call, PyObject *const *objects, Py_ssize_t given,
            PyObject **wrong)
{
    char name[24];
    call->objects = objects;
    if (given < 1 || given > WM_HALO_FIELDS) {
        wm_py_fail(PyExc_TypeError, "fields: give 1 to %d arrays, not %zd",
                   WM_HALO_FIELDS, given);
        keep_first(wrong);
    }
    for (int i = 0; i < WM_HALO_FIELDS && i < (int)given; ++i) {
        wm_view_t *view = &call->views[call->call.count];
        PyOS_snprintf(name, sizeof name, "fields[%d]", i);
        if (wm_py_view_parse(objects[i], true, name, view) < 0) {
            keep_first(wrong);
            continue;
        }
        call->fields[call->call.count++] = (wm_halo_field_t){
            .array = &view->array,
            .memory = &view->memory,
            .producer = &view->producer,
        };
    }
}

// Reads all arguments, also if some are wrong: a stream that is captured tells
// that the other ranks do not wait to be told.
static int
call_read(call_t *call, const char *name, wm_halo_step_t step,
          PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *wrong = NULL;
    call->stream_object = Py_None;
    call->call = (wm_halo_call_t){
        .step = step,
        .fields = call->fields,
        .op = WM_HALO_EXCHANGE,
        .device = -1,
    };
    if (read_keywords(call, args + given, names) < 0)
        keep_first(&wrong);
    read_fields(call, args, given, &wrong);
    wm_hang_call(name, true);
    if (wrong != NULL)
        PyErr_SetRaisedException(wrong);
    return wrong != NULL ? -1 : 0;
}

// Describes the exception that is set, for the other ranks; it stays.
static int
describe(wm_error_t *err)
{
    return wm_py_describe(
        PyErr_ExceptionMatches(PyExc_ValueError) ? WM_ERR_VALUE : WM_ERR_TYPE,
        err);
}

// Exchanges by messages, which are sent in Python.
static PyObject *
by_messages(PyObject *self, const call_t *call, Py_ssize_t given)
{
    PyObject *fields = PyTuple_New(given);
    for (Py_ssize_t i = 0; fields != NULL && i < given; ++i)
        PyTuple_SET_ITEM(fields, i, Py_NewRef(call->objects[i]));
    PyObject *result = fields != NULL
                           ? PyObject_CallMethod(self, "_by_messages", "OO",
                                                 fields, call->stream_object)
                           : NULL;
    Py_XDECREF(fields);
    return result;
}

// Another thread may have freed it while the arguments were read.
static int
check_open(const wm_py_halo_t *self)
{
    return self->halo != NULL && !self->freed
               ? 0
               : wm_py_fail(PyExc_RuntimeError,
                            "this halo was freed: make a new wm.Halo");
}

// Frees the halo; `drop`: does not wait for an exchange that is under way.
static void
close_halo(wm_py_halo_t *self, bool drop)
{
    wm_halo_t *halo = self->halo;
    self->halo = NULL;
    // After MPI's end, and in a forked child, nothing can be given back.
    if (halo != NULL && wm_engine_check(NULL) == 0)
        WM_PY_UNLOCKED((drop ? wm_halo_drop : wm_halo_free)(halo));
}

// Ends a call. The last one frees the halo if free() was called meanwhile.
static void
end_call(wm_py_halo_t *self)
{
    if (--self->calls == 0 && self->freed)
        close_halo(self, false);
}

// Makes a call with the other ranks, which are told of an exception; it stays.
// Returns Py_NotImplemented, borrowed, if messages serve the call.
static PyObject *
run_call(wm_py_halo_t *self, const call_t *call, int code,
         wm_halo_found_t *found)
{
    wm_error_t err;
    bool raised = code < 0;
    if (check_open(self) < 0)
        return NULL;
    code = raised ? describe(&err) : 0;
    ++self->calls;
    WM_PY_UNLOCKED(
        code = wm_halo_run(self->halo, &call->call, code, found, &err));
    end_call(self);
    if (raised)
        return NULL;
    if (code == 0 && found->by_messages)
        return Py_NotImplemented;
    return wm_py_none(code, &err);
}

static PyObject *
make_call(PyObject *object, const char *name, PyObject *const *args,
          Py_ssize_t given, PyObject *names, wm_halo_step_t step)
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    wm_halo_found_t found;
    call_t call;
    int code = call_read(&call, name, step, args, given, names);
    PyObject *result = run_call(self, &call, code, &found);
    if (result == Py_NotImplemented)
        result = step == WM_HALO_ENQUEUE ? by_messages(object, &call, given)
                                         : Py_NewRef(Py_NotImplemented);
    call_release(&call);
    return result;
}

PyDoc_STRVAR(
    halo_exchange_doc,
    "exchange($self, /, *fields, stream=None)\n--\n\n"
    "Fill the ghosts of the fields with the neighbours' edges.\n\n"
    "fields: 1 to 16 arrays of any library, whose first dimensions are\n"
    "those of the communicator, ghosts included; further dimensions are\n"
    "parts of an element. GPU arrays are exchanged on `stream`, or on the\n"
    "current stream of their library; the call does not wait for the GPU.\n"
    "All ranks exchange the same fields in the same order. The first\n"
    "exchange of a set of fields is collective and maps their memory. In a\n"
    "capture the exchange becomes one kernel of the graph; a wm.Array has no\n"
    "current stream, so give stream= there. Raises ValueError if the fields\n"
    "do not fit, or a width exceeds a block, and for a stream of another\n"
    "GPU, TypeError for other objects, MemoryError, wm.CudaError: on all\n"
    "ranks, but in a capture on this rank alone. Raises RuntimeError after\n"
    "free(), in a capture for fields that were not exchanged before, and if\n"
    "a capture is known of, but no stream; MPI.Exception once a rank has\n"
    "died or the communicator is revoked.");

static PyObject *
halo_exchange(PyObject *object, PyObject *const *args, Py_ssize_t given,
              PyObject *names)
{
    return make_call(object, "Halo.exchange", args, given, names,
                     WM_HALO_ENQUEUE);
}

PyDoc_STRVAR(
    halo_reduce_doc,
    "_reduce($self, op, /, *fields, stream=None)\n--\n\n"
    "Reduce ghosts into their owners. Returns NotImplemented if messages\n"
    "serve it.");

static PyObject *
halo_reduce(PyObject *object, PyObject *const *args, Py_ssize_t given,
            PyObject *names)
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    MPI_Op op = MPI_OP_NULL;
    wm_halo_found_t found;
    call_t call;
    if (given < 1)
        return wm_py_fail(PyExc_TypeError, "op: give an operation"), NULL;
    int code = call_read(&call, "Halo.reduce", WM_HALO_ENQUEUE, args + 1,
                         given - 1, names);
    if (code == 0)
        code = wm_py_mpi_op(args[0], "op", &op);
    if (code == 0 && !wm_reducible_reduces(op))
        code = wm_py_fail(PyExc_ValueError,
                          "op: it reduces nothing: give an operation such as "
                          "MPI.SUM");
    call.call.op = wm_reducible_op(op);
    PyObject *result = run_call(self, &call, code, &found);
    Py_XINCREF(result == Py_NotImplemented ? result : NULL);
    call_release(&call);
    return result;
}

PyDoc_STRVAR(
    halo_begin_doc,
    "_begin($self, /, *fields, stream=None)\n--\n\n"
    "Begin an exchange. Returns NotImplemented if messages serve it.");

static PyObject *
halo_begin(PyObject *object, PyObject *const *args, Py_ssize_t given,
           PyObject *names)
{
    return make_call(object, "Halo.start", args, given, names, WM_HALO_START);
}

// Makes a call with fields that are known, without the other ranks.
static PyObject *
call_known(PyObject *object, const char *name, uint32_t id,
           PyObject *const *args, Py_ssize_t given, PyObject *names,
           wm_halo_step_t step)
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    PyObject *result = NULL;
    wm_halo_found_t found;
    wm_error_t err;
    call_t call;
    int code = call_read(&call, name, step, args, given, names);
    if (code == 0)
        code = check_open(self);
    if (code == 0) {
        ++self->calls;
        WM_PY_UNLOCKED(
            code = wm_halo_repeat(self->halo, &call.call, id, &found, &err));
        end_call(self);
        result = wm_py_none(code, &err);
    }
    if (code == 0 && found.by_messages)
        Py_XSETREF(result, by_messages(object, &call, given));
    call_release(&call);
    return result;
}

PyDoc_STRVAR(halo_replay_doc,
             "_replay($self, plan, /, *fields, stream=None)\n--\n\n"
             "exchange() of the fields of a plan, by its number.");

static PyObject *
halo_replay(PyObject *object, PyObject *const *args, Py_ssize_t given,
            PyObject *names)
{
    int id = 0;
    if (given < 1 || wm_py_argument_int(args[0], "plan", &id) < 0)
        return NULL;
    return call_known(object, "HaloPlan()", (uint32_t)id, args + 1, given - 1,
                      names, WM_HALO_ENQUEUE);
}

PyDoc_STRVAR(halo_end_doc,
             "_end($self, /, *fields, stream=None)\n--\n\n"
             "Order later uses of the fields behind what _begin() began.");

static PyObject *
halo_end(PyObject *object, PyObject *const *args, Py_ssize_t given,
         PyObject *names)
{
    return call_known(object, "HaloExchange.finish", 0, args, given, names,
                      WM_HALO_FINISH);
}

PyDoc_STRVAR(halo_prepare_doc,
             "_prepare($self, /, *fields)\n--\n\n"
             "Make the set of the fields of a plan; return its number.");

static PyObject *
halo_prepare(PyObject *object, PyObject *const *args, Py_ssize_t given,
             PyObject *names)
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    wm_halo_found_t found;
    call_t call;
    int code = call_read(&call, "Halo.plan", WM_HALO_PREPARE, args, given,
                         names);
    PyObject *result = run_call(self, &call, code, &found);
    Py_XINCREF(result == Py_NotImplemented ? result : NULL);
    if (result != NULL)
        Py_SETREF(result, PyLong_FromUnsignedLong(found.id));
    call_release(&call);
    return result;
}

PyDoc_STRVAR(halo_free_doc,
             "free($self, /)\n--\n\n"
             "Release the memory of the halo; local.\n\n"
             "Waits for the exchanges that were begun here. Graphs with an\n"
             "exchange keep the memory until they are destroyed.");

static PyObject *
halo_free(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_py_halo_t *self = (wm_py_halo_t *)object;
    self->freed = true;
    ++self->calls;
    end_call(self);
    Py_RETURN_NONE;
}

static void
halo_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    close_halo((wm_py_halo_t *)object, true);
    type->tp_free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(halo_count_doc,
             "_count($self, /)\n--\n\nCount an exchange by messages.");

static PyObject *
halo_count(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
    wm_stat_add(WM_STAT_staged_halos, 1);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_count", halo_count, METH_NOARGS, halo_count_doc},
    {"_open", halo_open, METH_VARARGS, halo_open_doc},
    {"_copies", halo_copies, METH_VARARGS, halo_copies_doc},
    WM_PY_FASTCALL("exchange", halo_exchange),
    WM_PY_FASTCALL("_reduce", halo_reduce),
    WM_PY_FASTCALL("_replay", halo_replay),
    WM_PY_FASTCALL("_begin", halo_begin),
    WM_PY_FASTCALL("_end", halo_end),
    WM_PY_FASTCALL("_prepare", halo_prepare),
    {"free", halo_free, METH_NOARGS, halo_free_doc},
    {0},
};

PyDoc_STRVAR(halo_doc, "The calls of wm.Halo that find and launch.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)halo_doc},
    {Py_tp_dealloc, halo_dealloc},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec wm_py_halo_spec = {
    .name = "warpmpi._core.HaloCalls",
    .basicsize = sizeof(wm_py_halo_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE
             | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
