// SPDX-License-Identifier: BSD-3-Clause
// Calls of MPI's: mpi4py's method gets plain NumPy arrays, a method of
// warpmpi/_staging gets all other buffers. No Python code runs for plain
// arrays, as it would take longer than a short collective. If GPUs may do the
// call, direct_call.h comes first: on one host a rank with plain
// arrays declines there.
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "comm/comm/comm.h"
#include "comm/comm/host_only.h"
#include "comm/engine/engine.h"
#include "cuda/device.h"
#include "python/comm/attempt.h"
#include "python/comm/average.h"
#include "python/comm/direct_call.h"
#include "python/comm/py_persistent_coll.h"
#include "python/core/mpi4py.h"
#include "python/message/channel.h"
#include "python/message/specification.h"
#include "python/request/py_request.h"
#include "python/view/array_object.h"
#include "python/view/view.h"

#define MOST 8 // most arguments of such a collective

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *method;  // mpi4py's method
    PyObject *other;   // our method for all other buffers
    PyObject *explain; // adds to MPI's exceptions
    PyObject *dict;    // name, documentation and signature
    PyObject *again;   // persistent: starts the call by MPI; or None
    PyObject *paired;  // neighbours, if MPI needs another form of the call
    PyObject *where;   // (position, name) of each buffer
    PyObject *op;      // (position, name) of the operation; or None
    PyObject *counts;  // likewise of recvcounts
    PyObject *pending; // a dict: `other` does calls while it is not empty
    int begins;        // true: the call makes a request
    int direct;        // wm_coll_kind_t of a call that GPUs may do
    int computes;      // true: MPI computes with the elements
} passing_t;

// Returns true for an array of ours without gaps, in a process without a GPU:
// it is host memory that no stream writes.
static bool
is_own(const passing_t *self, PyObject *value)
{
    if (Py_TYPE(value) != wm_py_state->array_type || wm_device_count() > 0)
        return false;
    const wm_array_t *array = &((wm_array_object_t *)value)->array;
    return wm_array_is_contiguous(array) && array->dtype != WM_BFLOAT16
           && !(self->computes && array->dtype == WM_FLOAT16);
}

// Returns true for objects that can only be plain host memory.
static bool
is_bytes(PyObject *value)
{
    const char *name = Py_TYPE(value)->tp_name;
    return PyBytes_CheckExact(value) || PyByteArray_CheckExact(value)
           || strcmp(name, "mmap.mmap") == 0
           || strcmp(name, "array.array") == 0
           || ((PyObject *)Py_TYPE(value) == wm_py_state->mpi_memory
               && wm_device_count() == 0);
}

// Returns true if mpi4py may read counts without a check: they are not bytes
// that may lie in GPU memory.
static bool
is_host_count(PyObject *count)
{
    bool pair = PyTuple_Check(count) && PyTuple_GET_SIZE(count) == 2;
    for (int i = 0; pair && i < 2; ++i)
        if (!is_host_count(PyTuple_GET_ITEM(count, i)))
            return false;
    return !PyObject_CheckBuffer(count) || wm_py_view_is_plain(count, false);
}

// Returns true if MPI can take a buffer directly.
static bool
is_plain(const passing_t *self, PyObject *value)
{
    if (value == NULL)
        return false;
    bool listed = PyList_CheckExact(value) || PyTuple_CheckExact(value);
    Py_ssize_t length = listed ? PySequence_Fast_GET_SIZE(value) : 0;
    PyObject **items = length > 0 ? PySequence_Fast_ITEMS(value) : NULL;
    for (Py_ssize_t i = 1; i < length; ++i)
        if (!is_host_count(items[i]))
            return false;
    if (length > 0)
        value = items[0];
    // In a list None is MPI.BOTTOM.
    return wm_py_view_is_plain(value, self->computes)
           || (!listed && (value == Py_None || wm_py_mpi_is_in_place(value)))
           || is_own(self, value) || is_bytes(value);
}

static bool
is_host(const passing_t *Py_UNUSED(self), PyObject *value)
{
    return value == NULL || !wm_py_message_on_device(value);
}

// Returns the argument at a position, or with that name; borrowed, NULL: not
// given.
static PyObject *
find_argument(PyObject *where, PyObject *const *args, Py_ssize_t given,
              PyObject *names)
{
    Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(where, 0));
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    if (at < given)
        return args[at];
    for (Py_ssize_t i = 0; i < count; ++i)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i),
                              PyTuple_GET_ITEM(where, 1))
            == 0)
            return args[given + i];
    return NULL;
}

// Returns true if `is_such` is true for all buffers of a call; for a buffer
// that was not given, its value is NULL.
static bool
are_all(bool (*is_such)(const passing_t *self, PyObject *value),
        const passing_t *self, PyObject *const *args, Py_ssize_t given,
        PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->where); ++i)
        if (!is_such(self, find_argument(PyTuple_GET_ITEM(self->where, i),
                                         args, given, names)))
            return false;
    return true;
}

// Returns true if MPI can take the call directly.
static bool
is_mpi4pys(const passing_t *self, PyObject *const *args, Py_ssize_t given,
           PyObject *names)
{
    PyObject *counts = self->counts != Py_None
                           ? find_argument(self->counts, args, given, names)
                           : NULL;
    return (self->pending == Py_None || PyDict_GET_SIZE(self->pending) == 0)
           && (self->op == Py_None
               || !wm_py_average_is(
                   find_argument(self->op, args, given, names)))
           && (counts == NULL || is_host_count(counts))
           && are_all(is_plain, self, args, given, names);
}

// Adds an explanation to an exception of MPI's, or of mpi4py's about an
// argument. The exception stays.
static void
explain(const passing_t *self, PyObject *const *args, Py_ssize_t given,
        PyObject *names)
{
    if (self->explain == Py_None
        || (!PyErr_ExceptionMatches(wm_py_state->mpi_exception)
            && !PyErr_ExceptionMatches(PyExc_TypeError)
            && !PyErr_ExceptionMatches(PyExc_ValueError)
            && !PyErr_ExceptionMatches(PyExc_BufferError)
            && !PyErr_ExceptionMatches(PyExc_OverflowError)))
        return;
    PyObject *error = PyErr_GetRaisedException();
    Py_XDECREF(wm_py_call_with(self->explain, error, args, given, names));
    PyErr_SetRaisedException(error);
}

// Keeps a value, and exports its memory so that nobody can resize it.
static int
keep(PyObject *kept, PyObject *value)
{
    PyObject *view = PyObject_CheckBuffer(value)
                         ? PyMemoryView_FromObject(value)
                         : NULL;
    if (view == NULL)
        PyErr_Clear();
    int code = PyList_Append(kept, view != NULL ? view : value);
    Py_XDECREF(view);
    return code;
}

// Keeps all arguments of a call but its object. Returns NULL with an
// exception.
static PyObject *
keep_all(PyObject *const *args, Py_ssize_t count)
{
    PyObject *kept = PyList_New(0);
    int code = kept == NULL ? -1 : 0;
    for (Py_ssize_t i = 1; i < count && code == 0; ++i) {
        bool listed = PyList_Check(args[i]) || PyTuple_Check(args[i]);
        PyObject *items = listed ? PySequence_Tuple(args[i]) : NULL;
        Py_ssize_t length = items != NULL ? PyTuple_GET_SIZE(items) : 0;
        code = listed ? (items == NULL ? -1 : 0) : keep(kept, args[i]);
        for (Py_ssize_t j = 0; j < length && code == 0; ++j)
            code = keep(kept, PyTuple_GET_ITEM(items, j));
        Py_XDECREF(items);
    }
    if (code < 0)
        Py_CLEAR(kept);
    return kept;
}

// Gives the kept objects to mpi4py's request. Requests of reductions and of
// Iallgatherv do not keep the buffers, and none keeps datatypes, which MPI
// needs as long as a persistent request lives.
static void
hand_over(PyObject *result, PyObject *kept, bool persistent)
{
    PyMPIRequestObject *request = (PyMPIRequestObject *)result;
    if (!PyObject_TypeCheck(result, wm_py_mpi_request_type())
        || PyObject_TypeCheck(result, wm_py_state->request_type)
        || request->ob_mpi == MPI_REQUEST_NULL)
        return;
    PyObject *former = request->ob_buf, *all = NULL;
    if (former == Py_None)
        all = Py_NewRef(kept);
    else if (persistent)
        all = PyTuple_Pack(2, former, kept);
    if (all == NULL) {
        PyErr_Clear();
        return;
    }
    request->ob_buf = all;
    Py_DECREF(former);
}

// Calls mpi4py's method, or ours. Sets *made if MPI has made the call. An
// array's code may make other calls meanwhile, which are other attempts.
static PyObject *
attempt(const passing_t *self, bool ours, PyObject *const *args, size_t flags,
        PyObject *names, bool *made)
{
    bool outer = ours && wm_py_attempt_begin();
    PyObject *result = PyObject_Vectorcall(ours ? self->other : self->method,
                                           args, flags, names);
    *made = ours ? wm_py_attempt_end(outer) : wm_py_attempt_is_made(result);
    return result;
}

// Makes MPI's call, or our call in its place, on a communicator that may be
// another one. Sets *made if MPI has made it.
static PyObject *
pass_noting(const passing_t *self, bool ours, PyObject *const *args,
            size_t flags, PyObject *names, bool *made)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    Py_ssize_t count = given + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
    PyObject *kept = NULL;
    if (self->begins && (kept = keep_all(args, count)) == NULL)
        return NULL;
    PyObject *result = attempt(self, ours, args, flags, names, made);
    if (result == NULL && !ours)
        explain(self, args, given, names);
    if (result != NULL && kept != NULL)
        hand_over(result, kept, self->again != Py_None);
    Py_XDECREF(kept);
    return result;
}

static PyObject *
pass(const passing_t *self, bool ours, PyObject *const *args, size_t flags,
     PyObject *names)
{
    bool made;
    return pass_noting(self, ours, args, flags, names, &made);
}

// Does likewise for a call on `comm` that all ranks have numbered. If MPI
// refuses it, this rank's next call has this number.
static PyObject *
pass_numbered(const passing_t *self, bool ours, PyObject *comm,
              wm_coll_form_t form, PyObject *const *args, size_t flags,
              PyObject *names)
{
    bool made;
    PyObject *result = pass_noting(self, ours, args, flags, names, &made);
    if (!made && result == NULL)
        wm_py_direct_refused(comm, form);
    return result;
}

// Begins a nonblocking collective that GPUs may do.
static PyObject *
begin(const passing_t *self, bool ours, PyObject *const *args, size_t flags,
      PyObject *names)
{
    PyObject *result = NULL, *words[MOST];
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    Py_ssize_t count = given + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
    wm_coll_result_t begun = given > 0 && count <= MOST ? wm_py_direct_begin(
                                 (wm_coll_kind_t)self->direct, args[0],
                                 args + 1, given - 1, names, !ours, &result)
                                                        : WM_COLL_UNNUMBERED;
    if (begun == WM_COLL_UNNUMBERED)
        return pass(self, ours, args, flags, names);
    if (begun != WM_COLL_BY_MPI)
        return result;
    words[0] = result;
    memcpy(words + 1, args + 1, (size_t)(count - 1) * sizeof *words);
    PyObject *request = pass_numbered(self, ours, args[0],
                                      WM_COLL_FORM_NONBLOCKING, words,
                                      (size_t)given, names);
    if (request == NULL)
        wm_py_channel_fail(args[0], true); // MPI used another communicator
    Py_DECREF(result);
    return request;
}

// The arguments of a call that makes a persistent collective.
typedef struct {
    const passing_t *self;
    bool ours;
    PyObject *const *args;
    size_t flags;
    PyObject *names;
} init_t;

static PyObject *
init_by_mpi(const void *context, bool numbered)
{
    const init_t *of = context;
    return numbered ? pass_numbered(of->self, of->ours, of->args[0],
                                    WM_COLL_FORM_PERSISTENT, of->args,
                                    of->flags, of->names)
                    : pass(of->self, of->ours, of->args, of->flags, of->names);
}

// Makes a persistent collective that GPUs may do.
static PyObject *
init(const passing_t *self, bool ours, PyObject *const *args, size_t flags,
     PyObject *names)
{
    PyObject *result = NULL;
    init_t of = {self, ours, args, flags, names};
    int code = wm_py_persistent_coll_new(
        (wm_coll_kind_t)self->direct, args[0], args + 1,
        PyVectorcall_NARGS(flags) - 1, names, !ours, false, self->again,
        init_by_mpi, &of, &result);
    return code > 0 ? pass(self, ours, args, flags, names) : result;
}

// Makes a persistent collective of neighbours in which all data that a rank
// has for another rank is one block for MPI (comm/comm/neighbor.h).
static PyObject *
init_paired(const passing_t *self, bool ours, PyObject *const *args,
            size_t flags, PyObject *names)
{
    PyObject *result = NULL;
    PyObject *again = PyObject_CallOneArg(self->paired, args[0]);
    if (again != NULL
        && wm_py_persistent_coll_new((wm_coll_kind_t)self->direct, args[0],
                                     args + 1, PyVectorcall_NARGS(flags) - 1,
                                     names, !ours, true, again, NULL, NULL,
                                     &result)
               > 0)
        PyErr_SetString(PyExc_RuntimeError, "MPI was not to be asked");
    Py_XDECREF(again);
    return result;
}

// Begins another collective of neighbours in this form by MPI, on a
// communicator whose reference is dropped.
static PyObject *
ask_paired(const passing_t *self, PyObject *on, PyObject *const *args,
           Py_ssize_t given, PyObject *names)
{
    if (on == NULL)
        return NULL;
    bool outer = wm_py_attempt_begin();
    PyObject *request = wm_py_call_with(self->paired, on, args, given, names);
    if (!wm_py_attempt_end(outer) && request == NULL) {
        wm_py_direct_refused(args[0], WM_COLL_FORM_NONBLOCKING);
        if (!self->begins) // it has a number among blocking calls, too
            wm_py_direct_refused(args[0], WM_COLL_FORM_BLOCKING);
    }
    Py_DECREF(on);
    return request;
}

static PyObject *
begin_paired(const passing_t *self, bool ours, PyObject *const *args,
             Py_ssize_t given, PyObject *names)
{
    PyObject *on = NULL;
    wm_coll_result_t begun = wm_py_direct_begin((wm_coll_kind_t)self->direct,
                                                args[0], args + 1, given - 1,
                                                names, !ours, &on);
    if (begun == WM_COLL_UNNUMBERED)
        on = wm_py_direct_mpis_of(args[0], false);
    return begun <= WM_COLL_DONE ? on
                                 : ask_paired(self, on, args, given, names);
}

// Does a blocking collective of neighbours in this form.
static PyObject *
call_paired(const passing_t *self, PyObject *const *args, Py_ssize_t given,
            PyObject *names)
{
    PyObject *on = wm_py_direct_mpis_of(args[0], true);
    PyObject *request = ask_paired(self, on, args, given, names);
    PyObject *done = request != NULL
                         ? PyObject_CallMethod(request, "Wait", NULL)
                         : NULL;
    Py_XDECREF(request);
    Py_XDECREF(done);
    return done != NULL ? Py_NewRef(Py_None) : NULL;
}

// Returns true if MPI needs another form of a call of neighbours.
static bool
is_paired(const passing_t *self, PyObject *comm)
{
    return self->paired != Py_None
           && wm_py_direct_is_paired(comm, !self->begins);
}

// Returns true if the call is MPI's own on the user's communicator.
static bool
is_mpis(const passing_t *self, bool plain, PyObject *const *args,
        Py_ssize_t given, PyObject *names)
{
    MPI_Comm handle;
    if (given == 0 || !wm_py_mpi_is_comm(args[0], &handle))
        return false;
    const wm_comm_t *comm = wm_comm_find(handle);
    if (comm == NULL || self->paired != Py_None)
        return comm == NULL;
    return comm->host_only
           || (wm_host_only_by_mpi()
               && (plain || are_all(is_host, self, args, given, names)));
}

static PyObject *
serve(const passing_t *self, PyObject *const *args, size_t flags,
      PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    bool ours = !is_mpi4pys(self, args, given, names)
                || wm_engine_check(NULL) < 0;
    bool mpis = is_mpis(self, !ours, args, given, names);
    if (mpis && self->again == Py_None)
        return PyObject_Vectorcall(ours ? self->other : self->method, args,
                                   flags, names);
    if (mpis || self->direct == WM_COLL_UNKNOWN || given == 0
        || wm_engine_check(NULL) < 0)
        return pass(self, ours, args, flags, names);
    bool paired = is_paired(self, args[0]);
    if (self->again != Py_None)
        return paired ? init_paired(self, ours, args, flags, names)
                      : init(self, ours, args, flags, names);
    if (self->begins && paired)
        return begin_paired(self, ours, args, given, names);
    if (self->begins)
        return begin(self, ours, args, flags, names);
    wm_coll_result_t result = wm_py_direct_call((wm_coll_kind_t)self->direct,
                                                args[0], args + 1, given - 1,
                                                names, !ours);
    if (result == WM_COLL_MPIS_ERROR)
        explain(self, args, given, names);
    if (result <= WM_COLL_DONE)
        return result < 0 ? NULL : Py_NewRef(Py_None);
    if (paired)
        return call_paired(self, args, given, names);
    if (result == WM_COLL_UNNUMBERED)
        return pass(self, ours, args, flags, names);
    return pass_numbered(self, ours, args[0], WM_COLL_FORM_BLOCKING, args,
                         flags, names);
}

// Returns true for a call of a window that MPI can take directly. A put is
// faster than the rest of this file.
static bool
is_windows(const passing_t *self, PyObject *const *args, Py_ssize_t given,
           PyObject *names)
{
    return given > 0 && !self->begins
           && (Py_TYPE(args[0]) == wm_py_mpi_win_type()
               || Py_TYPE(args[0]) == wm_py_state->window_type)
           && is_mpi4pys(self, args, given, names)
           && wm_engine_check(NULL) == 0;
}

// Tells the communicator's error handler of errors that MPI has not told it.
static PyObject *
call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names)
{
    const passing_t *self = (passing_t *)object;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *result;
    if (is_windows(self, args, given, names)) {
        result = PyObject_Vectorcall(self->method, args, flags, names);
        if (result == NULL)
            explain(self, args, given, names);
        return result;
    }
    result = serve(self, args, flags, names);
    if (result == NULL && given > 0)
        wm_py_channel_fail(args[0], false);
    return result;
}

// Calls on a host-only communicator.
static PyObject *
call_mpis(PyObject *object, PyObject *const *args, size_t flags,
          PyObject *names)
{
    const passing_t *self = (passing_t *)object;
    if (wm_host_only_has_ended() && wm_py_check_running() < 0)
        return NULL;
    bool plain = is_mpi4pys(self, args, PyVectorcall_NARGS(flags), names);
    bool made;
    PyObject *result = attempt(self, !plain, args, flags, names, &made);
    if (result == NULL && plain)
        explain(self, args, PyVectorcall_NARGS(flags), names);
    return result;
}

static PyObject *
passing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *method, *other, *explains, *where, *name;
    Py_ssize_t position;
    PyObject *again = Py_None, *paired = Py_None;
    PyObject *op = Py_None, *counts = Py_None, *pending = Py_None;
    const char *direct = "";
    int begins = 0, computes = 0, mpis = 0;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "_Passing() takes no keywords");
    if (!PyArg_ParseTuple(args, "OOOO!|pspOOpOOO:_Passing", &method, &other,
                          &explains, &PyTuple_Type, &where, &begins, &direct,
                          &computes, &again, &paired, &mpis, &op, &counts,
                          &pending)
        || (op != Py_None && !PyArg_ParseTuple(op, "nU", &position, &name))
        || (counts != Py_None
            && !PyArg_ParseTuple(counts, "nU", &position, &name)))
        return NULL;
    if (pending != Py_None && !PyDict_Check(pending))
        return PyErr_Format(PyExc_TypeError, "pending: %R is no dict",
                            pending);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(where); ++i)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(where, i), "nU", &position,
                              &name))
            return NULL;
    passing_t *self = (passing_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = mpis ? call_mpis : call;
    self->method = Py_NewRef(method);
    self->other = Py_NewRef(other);
    self->explain = Py_NewRef(explains);
    self->where = Py_NewRef(where);
    self->op = Py_NewRef(op);
    self->counts = Py_NewRef(counts);
    self->pending = Py_NewRef(pending);
    self->again = Py_NewRef(again);
    self->paired = Py_NewRef(paired);
    self->begins = begins;
    self->computes = computes;
    self->direct = wm_py_coll_args_kind(direct);
    return (PyObject *)self;
}

static int
passing_traverse(PyObject *object, visitproc visit, void *arg)
{
    passing_t *self = (passing_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->method);
    Py_VISIT(self->other);
    Py_VISIT(self->explain);
    Py_VISIT(self->again);
    Py_VISIT(self->paired);
    Py_VISIT(self->pending);
    Py_VISIT(self->dict);
    return 0;
}

static int
passing_clear(PyObject *object)
{
    passing_t *self = (passing_t *)object;
    Py_CLEAR(self->method);
    Py_CLEAR(self->other);
    Py_CLEAR(self->explain);
    Py_CLEAR(self->again);
    Py_CLEAR(self->paired);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->dict);
    return 0;
}

static void
passing_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    passing_clear(object);
    Py_CLEAR(((passing_t *)object)->where);
    Py_CLEAR(((passing_t *)object)->op);
    Py_CLEAR(((passing_t *)object)->counts);
    type->tp_free(object);
    Py_DECREF(type);
}

// Binds the method if it is looked up on an object.
static PyObject *
passing_get(PyObject *object, PyObject *owner, PyObject *Py_UNUSED(type))
{
    return owner == NULL || owner == Py_None ? Py_NewRef(object)
                                             : PyMethod_New(object, owner);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(passing_t, vectorcall),
     READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(passing_t, dict), READONLY, NULL},
    {0},
};

static PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

PyDoc_STRVAR(
    passing_doc,
    "_Passing(method, other, explain, positions, begins=False, name='',\n"
    "computes=False, again=None, paired=None, mpis=False, op=None,\n"
    "counts=None, pending=None, /)\n--\n\n"
    "mpi4py's method for plain NumPy arrays, `other` for all else.\n\n"
    "explain: adds a note to MPI's exceptions, or None. positions:\n"
    "(position, name) of each buffer. begins: the call returns a request,\n"
    "which keeps the arguments. name: the collective, if GPUs may do it.\n"
    "computes: the call reduces elements, and MPI may not know their type.\n"
    "again: starts a persistent collective by MPI. Its arguments are the\n"
    "request (None: only checks), a communicator, and those of the call.\n"
    "paired: begins a collective of neighbours by MPI if a rank is a\n"
    "neighbour twice. Its arguments are the communicator of MPI's call, the\n"
    "caller's, and those of the call; for a persistent call it takes the\n"
    "communicator and makes `again`. mpis: the communicator is host-only, so\n"
    "MPI does the call at once. op: (position, name) of the operation, which\n"
    "`other` replaces if MPI does not know it. counts: (position, name) of\n"
    "recvcounts, which `other` refuses in GPU memory. pending: a dict;\n"
    "while it has items, `other` does the call.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)passing_doc}, {Py_tp_new, passing_new},
    {Py_tp_call, PyVectorcall_Call},  {Py_tp_traverse, passing_traverse},
    {Py_tp_clear, passing_clear},     {Py_tp_dealloc, passing_dealloc},
    {Py_tp_descr_get, passing_get},   {Py_tp_members, members},
    {Py_tp_getset, attributes},       {0},
};

PyType_Spec wm_py_passing_spec = {
    .name = "warpmpi._core._Passing",
    .basicsize = sizeof(passing_t),
    // Python 3.11 and later look methods of immutable types up fast.
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE
             | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = slots,
};
