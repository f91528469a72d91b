// SPDX-License-Identifier: BSD-3-Clause
#include <stdbool.h>

#include "python/request/py_request.h"

#include "comm/comm/comm.h"
#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/leftovers.h"
#include "comm/diagnostics/wait.h"
#include "python/message/owner.h"
#include "python/request/captured_request.h"
#include "python/request/handles.h"
#include "python/request/prequest.h"
#include "python/request/requests.h"
#include "python/request/stock.h"

bool
wm_py_interrupted(wm_op_t *op)
{
    if (!Py_IsInitialized()) // a thread may outlive it
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
    int code = wm_op_wait(op, wm_py_interrupted, err);
    if (status != NULL && code != WM_ERR_PYTHON && atomic_load(&op->done))
        wm_request_status(op, status);
    return code;
}

int
wm_py_waited(int code, wm_error_t *err)
{
    return code == WM_ERR_PYTHON ? -1 : wm_py_result(code, err);
}

// Tells the error handler of the communicator, unless this was freed. Only an
// operation that has failed holds its communicator.
static void
tell_handler(const wm_op_t *op)
{
    bool held = op->error.code != 0 && op->comm != NULL;
    MPI_Comm user = held ? op->comm->owner->user : MPI_COMM_NULL;
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
    int code = 0;
    // A thread in MPI, or with the engine's lock, may wait for the GIL (for a
    // reduction written in Python), so MPI is called without the GIL.
    if (handle == MPI_REQUEST_NULL)
        WM_PY_UNLOCKED(code = wm_request_start(op, &handle, &err));
    if (code < 0)
        wm_py_raise(&err);
    else
        self = (wm_request_t *)wm_py_mpi_new(wm_py_state->request_type);
    if (self == NULL) {
        wm_py_request_free(handle);
        wm_op_release(op); // the operation completes by itself
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
    if (self->op == NULL || self->handle != NULL)
        return self->op != NULL;
    return self->base.ob_mpi != MPI_REQUEST_NULL
           && !atomic_load(&self->op->freed);
}

int
wm_py_request_begin_unlocked(wm_request_t *self, wm_op_t *op,
                             MPI_Request *handle, wm_error_t *err)
{
    return self->handle != NULL ? wm_handle_begin(self->handle, op, err)
                                : wm_request_start(op, handle, err);
}

void
wm_py_request_set(wm_request_t *self, wm_op_t *op, MPI_Request handle)
{
    self->op = op;
    if (handle == MPI_REQUEST_NULL)
        return;
    if (self->handle == NULL) {
        self->base.ob_mpi = handle;
        return;
    }
    // Another thread has asked for the handle.
    wm_error_t err;
    WM_PY_UNLOCKED((void)!wm_handle_begin(self->handle, op, &err));
    wm_py_request_free(handle);
}

int
wm_py_request_begun(wm_request_t *self, wm_op_t *op, MPI_Request handle)
{
    wm_error_t err;
    int code = 0;
    if (handle == MPI_REQUEST_NULL)
        WM_PY_UNLOCKED(
            code = wm_py_request_begin_unlocked(self, op, &handle, &err));
    wm_py_request_set(self, op, handle);
    return wm_py_result(code, &err);
}

// Drops an operation. The payload gives back the buffer that it received into.
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
    MPI_Request lent = self->lent;
    self->op = NULL; // first: a release may let other threads run
    self->lent = MPI_REQUEST_NULL;
    if (self->handle == NULL) {
        if (op != NULL && atomic_load(&op->freed))
            self->base.ob_mpi = MPI_REQUEST_NULL;
        if (!PyObject_TypeCheck((PyObject *)self, wm_py_state->prequest_type))
            wm_py_handles_remove(self);
    }
    if (op != NULL && !atomic_load(&op->freed))
        wm_py_request_free(lent);
    let_go_of_op(op, self->payload == NULL);
    wm_py_message_release(&self->message);
    Py_CLEAR(self->payload);
}

// Gives MPI the operation's own request: that of a persistent request, whose
// handle stays the same, does not tell all about the operation.
void
wm_py_request_lend(wm_request_t *self)
{
    wm_op_t *op = self->op;
    wm_error_t err;
    if (self->handle == NULL || op == NULL)
        return;
    if (self->lent == MPI_REQUEST_NULL) {
        MPI_Request handle = MPI_REQUEST_NULL;
        wm_op_retain(op);
        WM_PY_UNLOCKED((void)!wm_request_start(op, &handle, &err));
        wm_op_release(op);
        self->lent = handle;
    }
    if (self->lent != MPI_REQUEST_NULL)
        self->base.ob_mpi = self->lent;
}

void
wm_py_request_take_back(wm_request_t *self)
{
    if (self->lent == MPI_REQUEST_NULL)
        return;
    MPI_Request handle = wm_handle_request(self->handle);
    bool ended = self->base.ob_mpi == MPI_REQUEST_NULL;
    self->base.ob_mpi = handle;
    if (!ended)
        return;
    self->lent = MPI_REQUEST_NULL;
    WM_PY_UNLOCKED(MPI_Wait(&handle, MPI_STATUS_IGNORE));
    wm_py_request_forget(self);
}

static PyObject *
request_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    wm_request_t *self = (wm_request_t *)wm_py_mpi_request_type()->tp_new(
        type, args, kwargs);
    if (self != NULL) {
        self->op = NULL;
        self->message = (wm_message_t){0};
        self->payload = NULL;
        self->handle = NULL;
        self->lent = MPI_REQUEST_NULL;
        self->known = self->adopted = self->in_graph = false;
    }
    return (PyObject *)self;
}

// Warns of an object that is lost: mpi4py's own lower-case calls do not know
// our requests, and return None instead of the object.
static void
warn_of_lost_object(wm_request_t *self)
{
    const wm_op_t *op = self->op;
    if (self->payload == NULL || op == NULL || !atomic_load(&op->done)
        || op->result.cancelled || op->error.code != 0
        || op->result.nbytes == 0 || self->base.ob_mpi != MPI_REQUEST_NULL)
        return;
    wm_py_warn_of_loss((PyObject *)self,
                       "an object that irecv of a wm.Comm received was lost: "
                       "MPI.Request.waitall and mpi4py's other waits return "
                       "such objects only after warpmpi.install(); use "
                       "wm.Request.waitall, or the request's wait()");
}

// Visits the objects that an ended operation keeps, if nobody else refers to
// it.
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
    // MPI's request holds a reference, too.
    bool requested = self->handle != NULL ? self->lent != MPI_REQUEST_NULL
                                          : wm_py_request_is_active(self);
    if (code == 0 && self->op != NULL)
        code = traverse_op(self->op, 1 + requested, visit, arg);
    return code != 0 ? code
                     : wm_py_mpi_traverse(wm_py_mpi_request_type(), object,
                                          visit, arg);
}

// Keeps what a message uses: the message may be under way.
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
    PyObject_GC_UnTrack(object); // releases below may run Python code
    bool known = self->known;
    wm_py_handles_adopt(object);
    warn_of_lost_object(self);
    bool active = wm_py_request_is_active(self);
    if (active)
        wm_leftovers_keep(self->op);
    // A request dropped early, whose handle nobody knows: MPI frees it when
    // the operation completes. Other requests belong to their handles.
    MPI_Request own = active && self->handle == NULL && !known
                          ? self->base.ob_mpi
                          : MPI_REQUEST_NULL;
    wm_op_t *op = self->op;
    bool has_buffer = self->payload == NULL;
    self->op = NULL;
    wm_py_request_forget(self);
    self->base.ob_mpi = MPI_REQUEST_NULL;
    wm_py_request_free(own);
    let_go_of_op(op, has_buffer); // last: frees what it kept
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
        self->base.ob_mpi = self->handle != NULL
                                ? wm_handle_request(self->handle)
                                : MPI_REQUEST_NULL;
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
        bool before = wm_request_keep_errors(true); // were raised already
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

// Calls mpi4py's own method of that name, with the request and a status or
// None, for a request that is not ours, or not under way.
static PyObject *
call_stock(const char *name, PyObject *object, PyObject *status)
{
    wm_request_t *self = (wm_request_t *)object;
    PyObject *other = wm_py_handles_find(object);
    if (other != NULL && other != object) // a copy, of a type of ours
        return wm_py_stock_forward(object, other, name, &status,
                                   status != NULL, NULL);
    Py_XDECREF(other);
    wm_py_request_lend(self);
    PyObject *result = wm_py_mpi_call(wm_py_mpi_request_type(), name, object,
                                      status);
    wm_py_request_take_back(self);
    return result;
}

PyDoc_STRVAR(request_wait_doc,
             "Wait($self, /, status=None)\n--\n\n"
             "Wait until the message has been sent or received.\n\n"
             "Received data of a GPU array is then ready for every stream.\n"
             "Other messages and Python threads make progress meanwhile.\n"
             "Returns True. Raises MPI.Exception (truncation), wm.CudaError,\n"
             "or another error of either rank.");

static PyObject *
request_wait(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"status", NULL};
    wm_request_t *self = (wm_request_t *)object;
    PyObject *given = Py_None;
    MPI_Status *status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Wait", names, &given)
        || wm_py_mpi_status(given, "status", &status) < 0
        || wm_py_check_running() < 0 || wm_py_prequest_notice(self) < 0
        || wm_py_captured_wait_one(self, true) < 0)
        return NULL;
    if (!wm_py_request_is_active(self)) {
        wm_py_request_forget(self); // MPI waited for it, or it was freed
        return call_stock("Wait", object, given);
    }
    wm_op_t *op = self->op;
    wm_op_retain(op);
    wm_waiting_call = (wm_waiting_call_t){.name = "Wait",
                                          .type = self->message.type};
    int code = wm_py_wait(op, status);
    bool ended = op->done;
    wm_op_release(op);
    if (ended)
        wm_py_request_retire(self);
    if (code < 0)
        return NULL;
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(request_test_doc,
             "Test($self, /, status=None)\n--\n\n"
             "Advance all messages once. Return True if the message has been\n"
             "sent or received: GPU arrays are then as after Wait. Errors as\n"
             "for Wait.");

// Returns true if the operation has ended, or there is none of ours.
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
    if (wm_py_check_running() < 0
        || wm_py_prequest_notice((wm_request_t *)object) < 0
        || wm_py_captured_wait_one((wm_request_t *)object, false) < 0)
        return NULL;
    if (!look((wm_request_t *)object))
        Py_RETURN_FALSE;
    return request_wait(object, args, kwargs);
}

PyDoc_STRVAR(request_get_status_doc,
             "Get_status($self, /, status=None)\n--\n\n"
             "Return True if the message has been sent or received, as Test\n"
             "does. The request stays, and must still be waited for.");

static PyObject *
request_get_status(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"status", NULL};
    PyObject *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Get_status", names,
                                     &given)
        || wm_py_check_running() < 0
        || wm_py_prequest_notice((wm_request_t *)object) < 0
        || wm_py_captured_wait_one((wm_request_t *)object, false) < 0)
        return NULL;
    (void)look((wm_request_t *)object);
    return call_stock("Get_status", object, given);
}

PyDoc_STRVAR(
    request_cancel_doc,
    "Cancel($self, /)\n--\n\n"
    "Cancel a receive that has matched no message. Other messages are\n"
    "not cancelled. The request must still be waited for; the status\n"
    "says whether it was cancelled.");

PyDoc_STRVAR(request_cancel_same_doc,
             "cancel($self, /)\n--\n\n"
             "Cancel the message if it can be, as Cancel does.");

static PyObject *
request_cancel(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_request_t *self = (wm_request_t *)object;
    if (wm_py_check_running() < 0 || wm_py_prequest_notice(self) < 0)
        return NULL;
    if (!wm_py_request_is_active(self)) {
        wm_py_request_forget(self);
        return call_stock("Cancel", object, NULL);
    }
    wm_op_t *op = self->op;
    wm_op_retain(op); // another thread may end the request
    if (!atomic_load(&op->done))
        WM_PY_UNLOCKED((void)wm_op_cancel(op));
    wm_op_release(op);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(request_free_doc,
             "Free($self, /)\n--\n\n"
             "Free the request. A message under way ends by itself.");

static PyObject *
request_free(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_request_t *self = (wm_request_t *)object;
    if (wm_py_check_running() < 0)
        return NULL;
    if (!wm_py_request_is_active(self)) {
        wm_py_request_forget(self);
        return call_stock("Free", object, NULL);
    }
    MPI_Request handle = self->base.ob_mpi;
    wm_py_handles_remove(self);
    self->base.ob_mpi = MPI_REQUEST_NULL;
    wm_py_request_forget(self);
    wm_py_request_free(handle);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(request_safe_free_doc,
             "free($self, /)\n--\n\n"
             "Call Free, unless the request is null or MPI is not running.");

static PyObject *
request_safe_free(PyObject *object, PyObject *Py_UNUSED(unused))
{
    int there = PyObject_IsTrue(object);
    if (there < 0)
        return NULL;
    return there && wm_engine_check(NULL) == 0
               ? PyObject_CallMethod(object, "Free", NULL)
               : Py_NewRef(Py_None);
}

// Returns the handle, by mpi4py's own method.
static PyObject *
show(PyObject *object, const char *name)
{
    if (wm_py_handles_show((wm_request_t *)object) < 0)
        return NULL;
    return wm_py_mpi_call(wm_py_mpi_request_type(), name, object, NULL);
}

#define SHOWS(name, function, text)                                           \
    PyDoc_STRVAR(function##_doc, name "($self, /)\n--\n\n" text);             \
                                                                              \
    static PyObject *function(PyObject *object, PyObject *Py_UNUSED(unused))  \
    {                                                                         \
        return show(object, name);                                            \
    }

SHOWS("py2f", request_py2f, "The handle as Fortran's integer.")
SHOWS("toint", request_toint, "The handle as an integer.")
SHOWS("tohandle", request_tohandle, "The handle of MPI.")

static PyObject *
request_get_handle(PyObject *object, void *Py_UNUSED(unused))
{
    if (wm_py_handles_show((wm_request_t *)object) < 0)
        return NULL;
    return wm_py_mpi_attribute(wm_py_mpi_request_type(), "handle", object);
}

static PyGetSetDef request_getters[] = {
    {"handle", request_get_handle, NULL, "The handle of MPI.", NULL},
    {0},
};

static PyMethodDef request_methods[] = {
    {"Cancel", request_cancel, METH_NOARGS, request_cancel_doc},
    {"cancel", request_cancel, METH_NOARGS, request_cancel_same_doc},
    {"Free", request_free, METH_NOARGS, request_free_doc},
    {"free", request_safe_free, METH_NOARGS, request_safe_free_doc},
    {"py2f", request_py2f, METH_NOARGS, request_py2f_doc},
    {"toint", request_toint, METH_NOARGS, request_toint_doc},
    {"tohandle", request_tohandle, METH_NOARGS, request_tohandle_doc},
    WM_PY_KEYWORDS("Wait", request_wait),
    WM_PY_KEYWORDS("Test", request_test),
    WM_PY_KEYWORDS("Get_status", request_get_status),
    WM_REQUESTS(WM_REQUESTS_ROW){0},
};

PyDoc_STRVAR(request_doc,
             "Request(request=None)\n--\n\n"
             "A nonblocking message of a wm.Comm. The request is an\n"
             "MPI.Request, which any call of mpi4py completes under\n"
             "MPI_THREAD_MULTIPLE, alone or together with others.");

static PyType_Slot request_slots[] = {
    {Py_tp_doc, (void *)request_doc},
    {Py_tp_new, request_new},
    {Py_tp_repr, wm_py_request_repr},
    {Py_tp_dealloc, wm_py_request_dealloc},
    {Py_tp_traverse, wm_py_request_traverse},
    {Py_tp_clear, wm_py_request_clear},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_getters},
    {0},
};

PyType_Spec wm_py_request_spec = {
    .name = "warpmpi.Request",
    .basicsize = sizeof(wm_request_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = request_slots,
};
