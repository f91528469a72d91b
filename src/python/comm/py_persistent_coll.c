// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/py_persistent_coll.h"

#include <string.h>

#include "comm/coll/run/nonblocking.h"
#include "comm/coll/run/persistent_coll.h"
#include "comm/comm/require.h"
#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/diagnostics/hang.h"
#include "python/message/channel.h"
#include "python/message/owner.h"
#include "python/comm/attempt.h"
#include "python/request/handles.h"
#include "python/request/prequest.h"

#define MOST 8 // most arguments, with the two in front

typedef struct {
    wm_prequest_t base; // its channel is the call's own communicator
    MPI_Comm handle;    // of this communicator; null once closed
    PyObject *read;     // the arguments as read; NULL: MPI does all
    PyObject *again;    // starts the call by MPI
    PyObject *args, *names;
} persistent_coll_t;

static wm_comm_t *
comm_of(const persistent_coll_t *self)
{
    return self->base.channel.comm->whole;
}

static void
close_own(wm_comm_t *own, MPI_Comm handle, wm_op_t *last)
{
    if (handle != MPI_COMM_NULL && !wm_is_child()
        && wm_engine_check(NULL) == 0)
        WM_PY_UNLOCKED(wm_persistent_coll_close(own, handle, last));
    else if (last != NULL)
        WM_PY_UNLOCKED(wm_op_release(last));
}

static int
persistent_coll_traverse(PyObject *object, visitproc visit, void *arg)
{
    persistent_coll_t *self = (persistent_coll_t *)object;
    Py_VISIT(self->again);
    Py_VISIT(self->args);
    if (self->read != NULL
        && wm_py_owner_is_alone(&self->base.message.buffer)) {
        const wm_py_coll_args_t *asked = wm_py_direct_asked(self->read);
        const wm_side_t *sides[] = {&asked->sent, &asked->received};
        for (int i = 0; i < 2; ++i) {
            Py_VISIT(asked->arrays[i]);
            int code = sides[i]->given ? wm_py_message_traverse(
                           &sides[i]->message, visit, arg)
                                       : 0;
            if (code != 0)
                return code;
        }
    }
    return wm_py_state->prequest_type->tp_traverse(object, visit, arg);
}

static void
clear_own(persistent_coll_t *self)
{
    Py_CLEAR(self->read);
    Py_CLEAR(self->again);
    Py_CLEAR(self->args);
    Py_CLEAR(self->names);
}

static int
persistent_coll_clear(PyObject *object)
{
    clear_own((persistent_coll_t *)object);
    return wm_py_state->prequest_type->tp_clear(object);
}

static void
persistent_coll_dealloc(PyObject *object)
{
    persistent_coll_t *self = (persistent_coll_t *)object;
    PyObject_GC_UnTrack(object);
    wm_py_handles_adopt(object);
    wm_comm_t *own = self->base.channel.comm; // NULL: it was adopted
    MPI_Comm handle = own != NULL ? self->handle : MPI_COMM_NULL;
    wm_op_t *last = self->base.request.op; // may be under way
    if (last != NULL)
        wm_op_retain(last);
    clear_own(self);
    wm_py_prequest_dealloc(object);
    close_own(own, handle, last); // no reference to it is left
}

// Calls `again` with the arguments and the request that becomes active, or
// None to check the arguments only.
static int
ask_mpi(PyObject *again, PyObject *request, PyObject *on, PyObject *args,
        PyObject *names)
{
    PyObject *words[MOST] = {request, on};
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    Py_ssize_t named = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < count; ++i)
        words[2 + i] = PyTuple_GET_ITEM(args, i);
    PyObject *none = PyObject_Vectorcall(again, words,
                                         (size_t)(2 + count - named), names);
    Py_XDECREF(none);
    return none != NULL ? 0 : -1;
}

// A start in preparation, and its result.
typedef struct {
    wm_comm_t *comm;
    const wm_coll_t *call;
    wm_buffer_t kept;
    wm_op_t *op;
    MPI_Request handle;
} starting_t;

// Gives the call's own communicator the setting of the program's, which may
// have changed since the last start.
static void
follow_required(const persistent_coll_t *self)
{
    wm_channel_t channel;
    if (wm_py_channel_get(self->base.comm, &channel) == 0)
        wm_require_set(comm_of(self), wm_require_is_on(channel.comm));
    else
        PyErr_Clear();
}

// Prepares a start by the GPUs. Returns 0; 1 if MPI is to do the call; -1 with
// an exception.
static int
prepare(persistent_coll_t *self, starting_t *starting)
{
    if (wm_py_prequest_prepare(&self->base) < 0)
        return -1;
    follow_required(self);
    if (self->read == NULL || !wm_nonblocking_is_ours(comm_of(self)))
        return 1;
    wm_py_coll_args_t *asked = wm_py_direct_asked(self->read);
    if (wm_py_coll_args_refresh(asked) < 0) {
        if (!wm_nonblocking_is_voted(comm_of(self)))
            return -1; // the other ranks are in the engine
        PyErr_Clear(); // MPI, or mpi4py, reports what is wrong
        return 1;
    }
    starting->comm = comm_of(self);
    starting->call = &asked->call;
    int code = wm_py_prequest_again(&self->base, &starting->kept);
    self->base.starting = code == 0;
    return code;
}

// Starts the call by MPI. `met`: the ranks have voted for MPI already.
static int
begin_by_mpi(persistent_coll_t *self, bool met)
{
    wm_comm_t *comm = comm_of(self);
    PyObject *on = !wm_nonblocking_is_voted(comm)
                       ? wm_py_mpi_comm_new(self->handle)
                   : met ? wm_py_direct_mpis(comm)
                         : wm_py_direct_decline(comm);
    bool outer = wm_py_attempt_begin();
    int code = on != NULL ? ask_mpi(self->again, (PyObject *)self, on,
                                    self->args, self->names)
                          : -1;
    bool made = wm_py_attempt_end(outer);
    if (code < 0 && on != NULL && !made)
        wm_coll_refused(comm, WM_COLL_FORM_NONBLOCKING);
    Py_XDECREF(on);
    return code;
}

// Begins calls without the GIL. Returns how many have begun; *code is the
// result of the next one.
static int
begin(starting_t *all, int count, int *code, wm_error_t *err)
{
    for (int i = 0; i < count; ++i) {
        starting_t *one = &all[i];
        *code = wm_py_direct_start(one->comm, one->call, &one->kept, &one->op,
                                   &one->handle, err);
        if (*code != 0) {
            for (int k = i + 1; k < count; ++k)
                wm_buffer_release(&all[k].kept);
            return i;
        }
    }
    return count;
}

// Starts the first request, and those behind it that GPUs do as well. Returns
// how many were started, or -1 with an exception.
static int
start_some(wm_prequest_t **requests, int count)
{
    starting_t all[WM_PY_AT_ONCE];
    wm_error_t err;
    int ready = 0, begun = 0, code = 0;
    while (
        ready < count
        && (code = prepare((persistent_coll_t *)requests[ready], &all[ready]))
               == 0)
        ++ready;
    bool met = ready > 0;
    if (met) { // the next one is prepared again in its turn
        if (code > 0)
            requests[ready]->starting = false;
        PyErr_Clear();
        WM_PY_UNLOCKED(begun = begin(all, ready, &code, &err));
        if (code < 0)
            wm_py_raise(&err);
    }
    for (int i = 0; i < begun; ++i)
        if (wm_py_request_begun(&requests[i]->request, all[i].op,
                                all[i].handle)
            < 0)
            code = -1;
    if (code > 0)
        code = begin_by_mpi((persistent_coll_t *)requests[begun++], met);
    for (int i = 0; i < begun || i < ready; ++i)
        requests[i]->starting = false;
    return code < 0 ? -1 : begun;
}

static int
start(wm_prequest_t **requests, int count)
{
    int some = 0;
    for (int i = 0; i < count && some >= 0; i += some)
        some = start_some(requests + i, count - i);
    return some < 0 ? -1 : 0;
}

PyDoc_STRVAR(start_doc,
             "Start($self, /)\n--\n\n"
             "Begin the collective once more, after the work that is on the\n"
             "arrays' streams now. Ranks may start several collectives in\n"
             "different orders. Raises MPI.Exception if the collective is\n"
             "still active, and the exceptions of its nonblocking form.");

static PyObject *
persistent_coll_start(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    return start(&self, 1) < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(free_doc,
             "Free($self, /)\n--\n\n"
             "Free the request. As in MPI, raises MPI.Exception while its\n"
             "collective is active.");

static PyObject *
persistent_coll_free(PyObject *object, PyObject *unused)
{
    persistent_coll_t *self = (persistent_coll_t *)object;
    wm_comm_t *own = self->base.channel.comm;
    if (wm_py_prequest_is_under_way(&self->base)) {
        wm_py_mpi_fail(MPI_ERR_REQUEST,
                       "the persistent collective is active: wait for it "
                       "before it is freed");
        return NULL;
    }
    PyObject *none = wm_py_prequest_free(object, unused);
    if (none == NULL)
        return NULL;
    MPI_Comm handle = self->handle;
    self->handle = MPI_COMM_NULL;
    clear_own(self);
    close_own(own, handle, NULL);
    return none;
}

static PyMethodDef methods[] = {
    {"Start", persistent_coll_start, METH_NOARGS, start_doc},
    {"Free", persistent_coll_free, METH_NOARGS, free_doc},
    {0},
};

PyDoc_STRVAR(persistent_coll_doc,
             "A persistent collective of a wm.Comm (Allreduce_init, …), from\n"
             "GPU to GPU.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)persistent_coll_doc},
    {Py_tp_dealloc, persistent_coll_dealloc},
    {Py_tp_traverse, persistent_coll_traverse},
    {Py_tp_clear, persistent_coll_clear},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec wm_py_persistent_coll_spec = {
    .name = "warpmpi.CollectiveRequest",
    .basicsize = sizeof(persistent_coll_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

// Takes the arguments, which the program may change: lists become tuples, and
// `info`, which nonblocking forms do not have, is dropped. *args becomes NULL,
// maybe with an exception, if mpi4py is to report what is wrong with them.
static void
take_arguments(Py_ssize_t most, PyObject *const *given, Py_ssize_t positions,
               PyObject *keywords, PyObject **args, PyObject **names)
{
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    PyObject *values = PyList_New(0), *words = PyList_New(0);
    bool taken = values != NULL && words != NULL && positions <= most + 1;
    for (Py_ssize_t i = 0; i < positions + named && taken; ++i) {
        PyObject *name = i < positions
                             ? NULL
                             : PyTuple_GET_ITEM(keywords, i - positions);
        if (name == NULL ? i == most
                         : PyUnicode_CompareWithASCIIString(name, "info") == 0)
            continue;
        PyObject *value = PyList_Check(given[i]) ? PyList_AsTuple(given[i])
                                                 : Py_NewRef(given[i]);
        taken = value != NULL && PyList_Append(values, value) == 0
                && (name == NULL || PyList_Append(words, name) == 0);
        Py_XDECREF(value);
    }
    taken = taken && PyList_GET_SIZE(values) <= MOST - 2;
    *args = taken ? PyList_AsTuple(values) : NULL;
    *names = *args != NULL && PyList_GET_SIZE(words) > 0
                 ? PyList_AsTuple(words)
                 : NULL;
    Py_XDECREF(values);
    Py_XDECREF(words);
}

// Returns 1 if MPI has no persistent collectives, else 0; -1 with an
// exception.
static int
are_lacking(void)
{
    PyObject *told = wm_py_cold("warpmpi._staging.collectives",
                                "lacks_persistent", "()");
    int lacking = told != NULL ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    return lacking;
}

static PyObject *
new_request(PyObject *comm, wm_comm_t *own, PyObject *read)
{
    wm_channel_t channel = {.comm = own, .device = -1};
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, MPI_PROC_NULL, 0,
                                                    false);
    wm_message_t message; // shared with the operation of each start
    if (wm_py_message_of_none(read, &message) < 0)
        return NULL;
    PyObject *self = wm_py_prequest_new(wm_py_state->persistent_coll_type,
                                        comm, &channel, Py_None, false,
                                        &envelope, &message);
    if (self != NULL)
        ((wm_prequest_t *)self)->start = start;
    return self;
}

// A persistent call that is being made.
typedef struct {
    wm_coll_kind_t kind;
    wm_comm_t *comm;
    bool lacking;            // MPI has no persistent form of it
    bool any_device;         // a buffer is GPU memory, not to be staged
    unsigned engines;        // bits of engines that serve it on this rank
    PyObject *taken, *names; // its arguments
    PyObject *read;          // as we have read them; NULL: only mpi4py can
} making_t;

// Reads the arguments. Returns 0; -1 with an exception if the call is refused,
// of which the others do not hear; 1 with an exception if CUDA has failed.
static int
read_arguments(making_t *making, PyObject *self, PyObject *const *args,
               Py_ssize_t given, PyObject *keywords, bool plain,
               PyObject *again)
{
    if (!plain || making->lacking)
        take_arguments(wm_coll_row(making->kind)->arguments->count, args,
                       given, keywords, &making->taken, &making->names);
    PyObject *taken = making->taken, *names = making->names;
    Py_ssize_t named = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    if (taken != NULL)
        making->read = wm_py_direct_read(making->kind, making->comm->whole,
                                         ((PyTupleObject *)taken)->ob_item,
                                         PyTuple_GET_SIZE(taken) - named,
                                         names, NULL);
    if (PyErr_ExceptionMatches(wm_py_state->cuda_error))
        return 1;
    if (wm_py_attempt_is_over()
        && (making->lacking
            || !PyErr_ExceptionMatches(wm_py_state->mpi_exception)))
        return -1;
    PyErr_Clear(); // MPI, or mpi4py, reports it
    if (plain)
        Py_CLEAR(making->read);
    making->engines = making->read != NULL ? wm_persistent_coll_engines(
                          making->comm,
                          &wm_py_direct_asked(making->read)->call)
                                           : 0;
    if (making->lacking && taken == NULL)
        return wm_py_fail(PyExc_TypeError, "%s_init: too many arguments",
                          wm_call_name(making->kind));
    // Without a persistent form MPI hears of the call at its start only.
    return making->lacking && making->engines == 0
               ? ask_mpi(again, Py_None, self, taken, names)
               : 0;
}

// Agrees with the other ranks who does the call. `failed`: an exception is
// set, and stays. WM_COLL_DONE: *own is a communicator.
static wm_coll_result_t
open_own(const making_t *making, bool failed, wm_comm_t **own,
         MPI_Comm *handle)
{
    wm_error_t err;
    wm_coll_result_t result;
    PyObject *raised = PyErr_GetRaisedException();
    wm_hang_call(wm_call_name(making->kind), true);
    WM_PY_UNLOCKED(
        result = wm_persistent_coll_open(
            making->comm, making->kind,
            making->read != NULL ? &wm_py_direct_asked(making->read)->call
                                 : NULL,
            making->engines, failed ? WM_ERR_CUDA : 0, making->any_device,
            making->lacking, own, handle, &err));
    if (result < 0 && !failed)
        wm_py_raise(&err);
    else
        PyErr_SetRaisedException(raised);
    return result;
}

// Returns the request of a call that all ranks make; takes over the arguments.
static PyObject *
make(making_t *making, PyObject *self, PyObject *again, wm_comm_t *own,
     MPI_Comm handle)
{
    persistent_coll_t *made = (persistent_coll_t *)new_request(self, own,
                                                               making->read);
    if (made == NULL) {
        close_own(own, handle, NULL);
        return NULL;
    }
    made->handle = handle;
    made->again = Py_NewRef(again);
    made->args = making->taken;
    made->names = making->names;
    made->read = making->read;
    making->taken = making->names = making->read = NULL;
    return (PyObject *)made;
}

// Frees MPI's own request, as another rank has failed. The exception stays.
static void
free_mpis(PyObject *request)
{
    if (request == NULL)
        return;
    PyObject *raised = PyErr_GetRaisedException();
    Py_XDECREF(PyObject_CallMethod(request, "Free", NULL));
    PyErr_SetRaisedException(raised);
    Py_DECREF(request);
}

int
wm_py_persistent_coll_new(wm_coll_kind_t kind, PyObject *self,
                          PyObject *const *args, Py_ssize_t given,
                          PyObject *keywords, bool plain, bool always,
                          PyObject *again, wm_py_mpis_init_t *mpis,
                          const void *context, PyObject **result)
{
    wm_channel_t channel;
    wm_comm_t *own;
    MPI_Comm handle;
    if (wm_py_channel_get(self, &channel) < 0) {
        PyErr_Clear();
        return 1;
    }
    int lacking = always ? 1 : are_lacking();
    bool required = wm_require_is_on(channel.comm);
    if (lacking < 0
        || (lacking == 0 && !required
            && !wm_coll_is_numbered(channel.comm->whole)))
        return lacking < 0 ? -1 : 1;
    making_t making = {.kind = kind, .comm = channel.comm, .lacking = lacking};
    if (required && !plain)
        making.any_device = wm_py_direct_any_device(args, given, keywords);
    // Between hosts a rank asks, whatever its memory.
    plain = wm_py_coll_args_is_plain(kind, channel.comm->whole, plain)
            && (wm_comm_is_one_host(channel.comm->whole)
                || !wm_coll_is_numbered(channel.comm->whole));
    int code = read_arguments(&making, self, args, given, keywords, plain,
                              again);
    bool failed = code > 0;
    PyObject *made = NULL;
    if (code == 0 && making.engines == 0 && !lacking
        && (made = mpis(context, false)) == NULL)
        code = -1;
    wm_coll_result_t opened = code < 0
                                  ? WM_COLL_FAILED
                                  : open_own(&making, failed, &own, &handle);
    if (opened == WM_COLL_DONE)
        made = make(&making, self, again, own, handle);
    else if (opened == WM_COLL_BY_MPI && made == NULL)
        made = mpis(context, true);
    else if (opened < 0) {
        free_mpis(made);
        made = NULL;
    }
    Py_XDECREF(making.taken);
    Py_XDECREF(making.names);
    Py_XDECREF(making.read);
    *result = made;
    return opened < 0 || made == NULL ? -1 : 0;
}
