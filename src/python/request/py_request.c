// SPDX-License-Identifier: BSD-3-Clause
#include <stdbool.h>

#include "python/request/py_request.h"

#include "comm/comm/comm.h"
#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "comm/watch/hang.h"
#include "comm/watch/leftovers.h"
#include "comm/watch/wait.h"
#include "python/message/owner.h"
#include "python/request/requests.h"

static bool
interrupted(wm_op_t *op)
{
    if (!Py_IsInitialized()) // a thread that outlives it, at the process's end
        return false;
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = wm_op_hold(op) && PyErr_CheckSignals() < 0;
    PyGILState_Release(state);
    if (!raised)
        wm_op_let_go_on(op);
    return raised;
}

int
wm_py_wait_unlocked(wm_op_t *op, MPI_Status *status, wm_error_t *err)
{
    int code = wm_op_wait(op, interrupted, err);
    if (status != NULL && code != WM_ERR_PYTHON && atomic_load(&op->done))
        wm_request_status(op, status);
    return code;
}

int
wm_py_waited(int code, wm_error_t *err)
{
    if (code < 0 && code != WM_ERR_PYTHON)
        wm_py_raise(err);
    return code < 0 ? -1 : 0;
}

// The error handler is that of the communicator, unless this was freed.
static void
tell_handler(const wm_op_t *op)
{
    MPI_Comm user = op->comm != NULL ? op->comm->owner->user : MPI_COMM_NULL;
    if (user != MPI_COMM_NULL)
        wm_py_mpi_call_handler(user, false);
}

int
wm_py_wait(wm_op_t *op, MPI_Status *status)
{
    wm_error_t err;
    int code;
    if (status == NULL && atomic_load(&op->done)) // nothing to wait for
        code = wm_op_wait(op, NULL, &err);
    else
        WM_PY_UNLOCKED(code = wm_py_wait_unlocked(op, status, &err));
    if (wm_py_waited(code, &err) == 0)
        return 0;
    tell_handler(op);
    return -1;
}

int
wm_py_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err)
{
    int code;
    WM_PY_UNLOCKED(code = wm_request_start(op, request, err));
    return code;
}

void
wm_py_request_free(MPI_Request request)
{
    if (request == MPI_REQUEST_NULL || wm_engine_check(NULL) < 0)
        return;
    WM_PY_UNLOCKED(MPI_Request_free(&request));
}

PyObject *
wm_py_request_new(wm_op_t *op, MPI_Request handle, wm_message_t *message)
{
    wm_error_t err;
    wm_request_t *self = NULL;
    if (handle == MPI_REQUEST_NULL
        && wm_py_request_start(op, &handle, &err) < 0)
        wm_py_raise(&err);
    else
        self = (wm_request_t *)wm_py_mpi_new(wm_py_state->request_type);
    if (self == NULL) {
        wm_py_request_free(handle);
        wm_op_release(op); // it ends by itself
        wm_py_message_release(message);
        return NULL;
    }
    self->op = op;
    self->message = *message;
    self->base.ob_mpi = handle;
    return (PyObject *)self;
}

bool
wm_py_request_is_active(const wm_request_t *self)
{
    return self->op != NULL && self->base.ob_mpi != MPI_REQUEST_NULL
           && self->base.ob_mpi != self->inactive;
}

// What a payload was received into is that's to give back.
static void
let_go_of_op(wm_op_t *op, bool has_buffer)
{
    if (op != NULL && has_buffer)
        wm_op_release_told(op);
    else if (op != NULL)
        wm_op_release(op);
}

void
wm_py_request_forget(wm_request_t *self)
{
    wm_op_t *op = self->op;
    self->op = NULL; // first: to release it may let others run
    let_go_of_op(op, self->payload == NULL);
    if (self->base.ob_mpi == MPI_REQUEST_NULL)
        self->base.ob_mpi = self->inactive;
    wm_py_message_release(&self->message);
    Py_CLEAR(self->payload);
}

static PyObject *
request_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    wm_request_t *self = (wm_request_t *)wm_py_mpi_request_type()->tp_new(
        type, args, kwargs);
    if (self != NULL) {
        self->op = NULL;
        self->inactive = MPI_REQUEST_NULL;
        self->message = (wm_message_t){0};
        self->payload = NULL;
    }
    return (PyObject *)self;
}

// mpi4py's own lower-case calls know nothing of our objects: None instead of
// one is an error that nobody would see.
static void
warn_of_lost_object(const wm_request_t *self)
{
    const wm_op_t *op = self->op;
    PyObject *kind, *value, *trace;
    if (self->payload == NULL || op == NULL || !atomic_load(&op->done)
        || op->result.cancelled || op->error.code != 0
        || op->result.nbytes == 0 || self->base.ob_mpi != MPI_REQUEST_NULL)
        return;
    PyErr_Fetch(&kind, &value, &trace);
    if (PyErr_WarnEx(PyExc_RuntimeWarning,
                     "an object received by irecv of a wm.Comm was not "
                     "taken: MPI.Request.waitall and its fellows give it "
                     "after warpmpi.install() alone; use "
                     "wm.Request.waitall, or the request's wait()",
                     1)
        < 0) // a warning that raises; `self` is nobody's to hold any more
        PyErr_WriteUnraisable((PyObject *)Py_TYPE(self));
    PyErr_Restore(kind, value, trace);
}

// What an operation keeps that has ended, and is nobody else's.
static int
traverse_op(wm_op_t *op, int references, visitproc visit, void *arg)
{
    if (!atomic_load(&op->done) || atomic_load(&op->references) != references)
        return 0;
    wm_buffer_t *buffer = wm_op_buffer(op);
    int code = buffer != NULL ? wm_py_owner_traverse(buffer, visit, arg) : 0;
    for (int i = 0; i < 2 && code == 0; ++i)
        if (op->parts_of[i] != NULL)
            code = traverse_op(op->parts_of[i], 1, visit, arg);
    return code;
}

int
wm_py_request_traverse(PyObject *object, visitproc visit, void *arg)
{
    wm_request_t *self = (wm_request_t *)object;
    Py_VISIT(self->payload);
    int code = wm_py_message_traverse(&self->message, visit, arg);
    // MPI's request has a reference, too.
    if (code == 0 && self->op != NULL)
        code = traverse_op(self->op, 1 + wm_py_request_is_active(self), visit,
                           arg);
    return code != 0 ? code
                     : wm_py_mpi_traverse(wm_py_mpi_request_type(), object,
                                          visit, arg);
}

// What a message uses is not let go of: it may be under way.
int
wm_py_request_clear(PyObject *object)
{
    return wm_py_mpi_clear(wm_py_mpi_request_type(), object);
}

void
wm_py_request_dealloc(PyObject *object)
{
    wm_request_t *self = (wm_request_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object); // what is let go may run Python code
    warn_of_lost_object(self);
    if (wm_py_request_is_active(self))
        wm_leftovers_keep(self->op);
    wm_op_t *op = self->op;
    bool has_buffer = self->payload == NULL;
    self->op = NULL;
    wm_py_request_forget(self);
    // A request dropped early: MPI frees it when the operation completes it.
    bool own = self->inactive != MPI_REQUEST_NULL
               && self->inactive != self->base.ob_mpi;
    wm_py_request_free(self->base.ob_mpi);
    if (own)
        wm_py_request_free(self->inactive);
    self->base.ob_mpi = self->inactive = MPI_REQUEST_NULL;
    let_go_of_op(op, has_buffer); // last: what it kept goes at once
    wm_py_mpi_request_type()->tp_dealloc(object);
    Py_DECREF(type);
}

void
wm_py_request_retire(wm_request_t *self)
{
    wm_ended_t ended = wm_py_request_take_ended(self);
    wm_py_end_requests(&ended, 1);
}

wm_ended_t
wm_py_request_take_ended(wm_request_t *self)
{
    wm_ended_t ended = {.op = NULL, .handle = MPI_REQUEST_NULL};
    if (wm_py_request_is_active(self)) {
        ended.handle = self->base.ob_mpi;
        self->base.ob_mpi = self->inactive;
    }
    if (self->payload == NULL) {
        ended.op = self->op;
        self->op = NULL;
    }
    wm_py_request_forget(self);
    return ended;
}

void
wm_py_end_requests(wm_ended_t *ended, int count)
{
    bool any = false;
    for (int i = 0; i < count; ++i)
        any |= ended[i].handle != MPI_REQUEST_NULL;
    if (any) {
        Py_BEGIN_ALLOW_THREADS;
        bool before = wm_request_keep_errors(true); // they were raised
        for (int i = 0; i < count; ++i) {
            if (ended[i].handle == MPI_REQUEST_NULL)
                continue;
            int result = MPI_Wait(&ended[i].handle, MPI_STATUS_IGNORE);
            (void)result;
        }
        (void)wm_request_keep_errors(before);
        Py_END_ALLOW_THREADS;
    }
    for (int i = 0; i < count; ++i)
        if (ended[i].op != NULL)
            wm_op_release_told(ended[i].op);
}

// mpi4py's own method of that name, on the request and a status or None.
static PyObject *
call_stock(const char *name, PyObject *object, PyObject *status)
{
    return wm_py_mpi_call(wm_py_mpi_request_type(), name, object, status);
}

PyDoc_STRVAR(
    request_wait_doc,
    "Wait($self, /, status=None)\n--\n\n"
    "Wait until the message has been sent or received.\n\n"
    "Other messages and Python threads make progress meanwhile. Returns\n"
    "True. Raises MPI.Exception (truncation), wm.CudaError, or what else\n"
    "went wrong at either end.");

static PyObject *
request_wait(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"status", NULL};
    wm_request_t *self = (wm_request_t *)object;
    PyObject *given = Py_None;
    MPI_Status *status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Wait", names, &given)
        || wm_py_mpi_status(given, "status", &status) < 0
        || wm_py_check_running() < 0)
        return NULL;
    if (!wm_py_request_is_active(self)) {
        wm_py_request_forget(self); // waited for by MPI itself, or freed
        return call_stock("Wait", object, given);
    }
    wm_op_t *op = self->op;
    wm_op_retain(op);
    wm_call = (wm_call_t){.name = "Wait", .type = self->message.type};
    int code = wm_py_wait(op, status);
    bool ended = op->done;
    wm_op_release(op);
    if (ended)
        wm_py_request_retire(self);
    if (code < 0)
        return NULL;
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(
    request_test_doc,
    "Test($self, /, status=None)\n--\n\n"
    "Whether the message has been sent or received; advances all messages\n"
    "once. Errors as for Wait.");

// Whether it has ended, or there is nothing of ours to end.
static bool
look(wm_request_t *self)
{
    wm_op_t *op = self->op;
    if (!wm_py_request_is_active(self) || op->done)
        return true;
    wm_op_retain(op); // another thread may end the request
    WM_PY_UNLOCKED(wm_engine_look(op));
    bool ended = op->done;
    wm_op_release(op);
    return ended;
}

static PyObject *
request_test(PyObject *object, PyObject *args, PyObject *kwargs)
{
    if (wm_py_check_running() < 0)
        return NULL;
    if (!look((wm_request_t *)object))
        Py_RETURN_FALSE;
    return request_wait(object, args, kwargs);
}

PyDoc_STRVAR(
    request_get_status_doc,
    "Get_status($self, /, status=None)\n--\n\n"
    "Whether the message has been sent or received, as Test; the request\n"
    "stays, to be waited for.");

static PyObject *
request_get_status(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"status", NULL};
    PyObject *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Get_status", names,
                                     &given)
        || wm_py_check_running() < 0)
        return NULL;
    (void)look((wm_request_t *)object);
    return call_stock("Get_status", object, given);
}

static PyMethodDef request_methods[] = {
    WM_PY_KEYWORDS("Wait", request_wait),
    WM_PY_KEYWORDS("Test", request_test),
    WM_PY_KEYWORDS("Get_status", request_get_status),
    WM_REQUESTS(WM_REQUESTS_ROW){0},
};

PyDoc_STRVAR(
    request_doc,
    "Request(request=None)\n--\n\n"
    "A nonblocking message of a wm.Comm: an MPI.Request that any of\n"
    "mpi4py's calls completes under MPI_THREAD_MULTIPLE, alone or in a\n"
    "mix with others.");

static PyType_Slot request_slots[] = {
    {Py_tp_doc, (void *)request_doc},
    {Py_tp_new, request_new},
    {Py_tp_dealloc, wm_py_request_dealloc},
    {Py_tp_traverse, wm_py_request_traverse},
    {Py_tp_clear, wm_py_request_clear},
    {Py_tp_methods, request_methods},
    {0},
};

PyType_Spec wm_py_request_spec = {
    .name = "warpmpi.Request",
    .basicsize = sizeof(wm_request_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = request_slots,
};
