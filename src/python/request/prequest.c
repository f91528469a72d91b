// SPDX-License-Identifier: BSD-3-Clause
#include "python/request/prequest.h"

#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "python/request/captured_request.h"
#include "python/request/handles.h"
#include "python/request/requests.h"
#include "python/request/stock.h"

static wm_py_start_t start;
static unsigned long made; // requests made so far

bool
wm_py_prequest_is_live(const wm_prequest_t *self)
{
    const wm_request_t *request = &self->request;
    bool freed = request->handle != NULL // by C, at the object's address
                 && request->base.ob_mpi == MPI_REQUEST_NULL;
    return !freed && (self->comm != NULL || self->kept != NULL);
}

PyObject *
wm_py_prequest_new(PyTypeObject *type, PyObject *comm,
                   const wm_channel_t *channel, PyObject *buf, bool receives,
                   const wm_envelope_t *envelope, wm_message_t *message)
{
    wm_prequest_t *self = (wm_prequest_t *)wm_py_mpi_new(type);
    if (self == NULL) {
        wm_py_message_release(message);
        return NULL;
    }
    self->comm = Py_NewRef(comm);
    self->channel = *channel;
    wm_comm_retain(channel->comm);
    self->array = Py_NewRef(wm_py_message_array(buf));
    self->message = *message;
    self->envelope = *envelope;
    self->receives = receives;
    self->start = type == wm_py_state->prequest_type ? start : NULL;
    return (PyObject *)self;
}

static PyObject *
prequest_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    wm_prequest_t *self = (wm_prequest_t *)wm_py_state->request_type->tp_new(
        type, args, kwargs);
    if (self != NULL) {
        self->comm = self->array = self->kept = NULL;
        self->start = NULL;
        self->captured = NULL;
        self->message = (wm_message_t){0};
        self->number = ++made;
    }
    return (PyObject *)self;
}

static void
release(PyObject *object)
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    wm_captured_release(self->captured);
    self->captured = NULL;
    wm_py_message_release(&self->message);
    Py_CLEAR(self->array);
    if (self->comm != NULL)
        wm_comm_release(self->channel.comm);
    Py_CLEAR(self->comm);
    Py_CLEAR(self->kept);
}

static int
prequest_traverse(PyObject *object, visitproc visit, void *arg)
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    Py_VISIT(self->array);
    Py_VISIT(self->comm);
    Py_VISIT(self->kept);
    int code = wm_py_message_traverse(&self->message, visit, arg);
    return code != 0 ? code : wm_py_request_traverse(object, visit, arg);
}

static int
prequest_clear(PyObject *object)
{
    release(object); // a message under way keeps what it needs
    return wm_py_request_clear(object);
}

// Frees MPI's persistent request, if the program has asked for it.
static void
prequest_let_go_of_handle(wm_prequest_t *self)
{
    wm_handle_t *handle = self->request.handle;
    if (handle == NULL)
        return;
    if (wm_engine_check(NULL) == 0)
        WM_PY_UNLOCKED(wm_handle_free(handle));
    self->request.handle = NULL; // after the call, which reads ob_mpi
    self->request.base.ob_mpi = MPI_REQUEST_NULL;
}

void
wm_py_prequest_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    if (((wm_prequest_t *)object)->request.in_graph)
        wm_py_warn_of_loss(
            object, "a message was started in a capture into a CUDA graph, "
                    "and its request was dropped without a wait: the graph "
                    "does not receive the message, nor send a long one; call "
                    "Wait or Waitall before the capture ends");
    wm_py_handles_adopt(object);
    prequest_let_go_of_handle((wm_prequest_t *)object);
    release(object);
    PyObject_GC_Track(object); // the base untracks it again
    wm_py_request_dealloc(object);
}

// If the handle stays the same, nothing tells that the program waited for the
// request by its handle.
bool
wm_py_prequest_is_under_way(const wm_prequest_t *self)
{
    const wm_request_t *request = &self->request;
    return wm_py_captured_is_under_way(self)
           || (wm_py_request_is_active(request)
               && (request->handle == NULL
                   || !atomic_load(&request->op->done)));
}

int
wm_py_prequest_prepare(wm_prequest_t *self)
{
    wm_request_t *request = &self->request;
    if (!wm_py_prequest_is_live(self))
        return wm_py_mpi_fail(
            MPI_ERR_REQUEST,
            "the persistent request is null, or was freed: make a new one");
    if (wm_py_check_running() < 0
        || (!self->started && wm_py_prequest_notice(request) < 0))
        return -1;
    if (self->starting || wm_py_prequest_is_under_way(self))
        return wm_py_mpi_fail(MPI_ERR_REQUEST,
                              "the persistent request is active: wait for it "
                              "before it is started again");
    self->starting = true;
    wm_py_request_forget(request); // MPI itself has waited for it
    return 0;
}

int
wm_py_prequest_again(wm_prequest_t *self, wm_buffer_t *buffer)
{
    return wm_py_message_again(self->array, "buf", &self->message, buffer);
}

// Prepares a start and its buffer, with which the caller begins the message.
// The array may run Python code: the request is taken first, and stays so
// until the caller has begun it, or reported the failure.
static int
prepare(wm_prequest_t *self, wm_buffer_t *buffer, bool *taken)
{
    *taken = wm_py_prequest_prepare(self) == 0;
    if (!*taken)
        return -1;
    return wm_py_prequest_again(self, buffer);
}

// Begins prepared messages, without the GIL. Returns how many have begun, and
// the error of the next one.
static int
begin(wm_prequest_t **requests, wm_buffer_t *buffers, int count, wm_op_t **ops,
      wm_error_t *err)
{
    int last = count - 1; // the last send
    while (last > 0 && requests[last]->receives)
        --last;
    for (int i = 0; i < count; ++i) {
        wm_envelope_t envelope = requests[i]->envelope;
        envelope.more = i < last;
        envelope.uncaptured = true; // wm_py_captured_start() has asked
        int code = wm_py_channel_begin_unlocked(
            &requests[i]->channel, &envelope, requests[i]->receives,
            &buffers[i], &ops[i], err);
        if (code < 0) {
            for (int k = i + 1; k < count; ++k)
                wm_buffer_release(&buffers[k]);
            return i;
        }
    }
    return count;
}

static int
start(wm_prequest_t **requests, int count)
{
    wm_buffer_t buffers[WM_PY_AT_ONCE];
    wm_op_t *ops[WM_PY_AT_ONCE];
    MPI_Request handles[WM_PY_AT_ONCE];
    wm_error_t err;
    int prepared = 0, begun, code = 0;
    bool taken = true;
    wm_prequest_t *others[WM_PY_AT_ONCE];
    if (wm_py_captured_start(requests, count, others, &count) < 0)
        return -1;
    requests = others;
    while (prepared < count
           && prepare(requests[prepared], &buffers[prepared], &taken) == 0)
        ++prepared;
    wm_prequest_t *failed = prepared < count && taken ? requests[prepared]
                                                      : NULL;
    PyObject *error = PyErr_GetRaisedException(); // of the one that failed
    Py_BEGIN_ALLOW_THREADS;
    begun = begin(requests, buffers, prepared, ops, &err);
    if (begun > 0)
        wm_send_flush();
    for (int i = 0; i < begun; ++i) {
        wm_error_t late;
        handles[i] = MPI_REQUEST_NULL;
        if (wm_py_request_begin_unlocked(&requests[i]->request, ops[i],
                                         &handles[i], &late)
                < 0
            && code == 0) {
            code = -1;
            err = late;
        }
    }
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < prepared; ++i) {
        wm_buffer_release(&buffers[i]);
        requests[i]->starting = false;
    }
    for (int i = 0; i < begun; ++i)
        wm_py_request_set(&requests[i]->request, ops[i], handles[i]);
    if (begun < prepared || code < 0) {
        Py_XDECREF(error);
        if (failed != NULL)
            failed->starting = false;
        wm_py_raise(&err);
        return -1;
    }
    PyErr_SetRaisedException(error);
    if (prepared == count)
        return 0;
    if (failed != NULL) {
        // After those that were begun: messages do not overtake.
        if (!failed->receives)
            wm_py_channel_tell_receiver(&failed->channel, &failed->envelope);
        failed->starting = false;
    }
    return -1;
}

PyDoc_STRVAR(prequest_start_doc,
             "Start($self, /)\n--\n\n"
             "Begin the message once more, after the work that is on the\n"
             "array's stream now. Raises MPI.Exception if the request is\n"
             "active already, and the exceptions of Isend or Irecv.");

static PyObject *
prequest_start(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    return start(&self, 1) < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(
    prequest_startall_doc,
    "Startall($type, requests, /)\n--\n\n"
    "Begin the messages and collectives of persistent requests\n"
    "together. Short messages share a kernel. The list may contain\n"
    "MPI's own requests. Raises the exceptions of Start; the requests\n"
    "before the one that failed have been started.");

static wm_py_start_t *
start_of(PyObject *object)
{
    return PyObject_TypeCheck(object, wm_py_state->prequest_type)
               ? ((wm_prequest_t *)object)->start
               : NULL;
}

// Starts a request of a derived type, or of MPI's own.
static int
start_alone(PyObject *object)
{
    PyObject *none = PyObject_CallMethod(object, "Start", NULL);
    Py_XDECREF(none);
    return none != NULL ? 0 : -1;
}

int
wm_py_prequest_begin_started(wm_prequest_t *self)
{
    PyObject *object = (PyObject *)self;
    wm_handle_t *handle = self->request.handle;
    bool started = false;
    if (handle == NULL || self->starting || self->started
        || wm_engine_check(NULL) < 0 || wm_py_prequest_is_under_way(self))
        return 0;
    self->started = true; // other threads may run meanwhile
    WM_PY_UNLOCKED(started = wm_handle_is_started(handle));
    int code = 0;
    if (started && start_of(object) != NULL)
        code = self->start(&self, 1);
    else if (started)
        code = start_alone(object);
    self->started = false;
    if (code < 0 && self->request.handle == handle)
        WM_PY_UNLOCKED(wm_handle_fail(handle));
    return code;
}

int
wm_py_prequest_notice(wm_request_t *request)
{
    return request->handle != NULL
                   && !wm_py_prequest_is_under_way((wm_prequest_t *)request)
               ? wm_py_handles_begin_started()
               : 0;
}

static PyObject *
prequest_startall(PyObject *Py_UNUSED(type), PyObject *given)
{
    // The caller's list may change while the GIL is released.
    PyObject *each = wm_py_requests_tuple(given);
    PyObject *list = each != NULL ? wm_py_stock_resolve(each) : NULL;
    Py_XDECREF(each);
    if (list == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(list);
    int code = 0;
    for (Py_ssize_t i = 0; i < count && code == 0; ++i)
        if (!PyObject_TypeCheck(PyTuple_GET_ITEM(list, i),
                                wm_py_mpi_prequest_type()))
            code = wm_py_fail(PyExc_TypeError,
                              "requests[%zd]: %.200s is no persistent request",
                              i, Py_TYPE(PyTuple_GET_ITEM(list, i))->tp_name);
    for (Py_ssize_t i = 0, run; i < count && code == 0; i += run) {
        PyObject **items = ((PyTupleObject *)list)->ob_item + i;
        wm_py_start_t *begins = start_of(items[0]);
        for (run = 1; begins != NULL && run < WM_PY_AT_ONCE && i + run < count
                      && start_of(items[run]) == begins;)
            ++run;
        code = begins != NULL ? begins((wm_prequest_t **)items, (int)run)
                              : start_alone(items[0]);
    }
    Py_DECREF(list);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(prequest_free_doc,
             "Free($self, /)\n--\n\n"
             "Free the request. An active message ends by itself.");

PyObject *
wm_py_prequest_free(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    if (wm_is_child() && wm_py_check_running() < 0)
        return NULL;
    if (!wm_py_prequest_is_live(self)) {
        wm_py_mpi_fail(MPI_ERR_REQUEST,
                       "the persistent request is null, or was freed already");
        return NULL;
    }
    if (self->starting) {
        wm_py_mpi_fail(MPI_ERR_REQUEST,
                       "the persistent request is being started");
        return NULL;
    }
    MPI_Request active = wm_py_request_is_active(&self->request)
                                 && self->request.handle == NULL
                             ? self->request.base.ob_mpi
                             : MPI_REQUEST_NULL;
    wm_op_t *op = self->request.op;
    if (op != NULL) // to end it, below
        wm_op_retain(op);
    wm_py_request_forget(&self->request);
    prequest_let_go_of_handle(self);
    self->request.base.ob_mpi = MPI_REQUEST_NULL;
    wm_captured_t *captured = self->captured;
    self->captured = NULL;
    self->request.in_graph = false;
    if (captured != NULL)
        WM_PY_UNLOCKED(wm_captured_free(captured, self->channel.stream));
    release(object);
    wm_py_handles_remove(&self->request);
    wm_py_request_free(active);
    if (op != NULL) // last: frees what it kept
        wm_op_release_told(op);
    Py_RETURN_NONE;
}

static int
prequest_bool(PyObject *object)
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    return wm_py_prequest_is_live(self)
           || self->request.base.ob_mpi != MPI_REQUEST_NULL;
}

// Returns true if the program has not asked for the request's handle.
static bool
is_hidden(PyObject *object)
{
    const wm_request_t *request = (wm_request_t *)object;
    return PyObject_TypeCheck(object, wm_py_state->prequest_type)
           && wm_py_prequest_is_live((wm_prequest_t *)object)
           && request->handle == NULL;
}

static PyObject *
prequest_richcompare(PyObject *object, PyObject *other, int how)
{
    bool hidden = is_hidden(object) || is_hidden(other);
    if (!hidden || (how != Py_EQ && how != Py_NE)
        || !PyObject_TypeCheck(other, wm_py_mpi_request_type()))
        return wm_py_mpi_request_type()->tp_richcompare(object, other, how);
    return PyBool_FromLong((object == other) == (how == Py_EQ));
}

PyDoc_STRVAR(prequest_reduce_doc, "__reduce__($self, /)\n--\n\n"
                                  "Pickles null requests alone.");

static PyObject *
prequest_reduce(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (!prequest_bool(object))
        return wm_py_mpi_call(wm_py_mpi_request_type(), "__reduce__", object,
                              NULL);
    return PyErr_Format(PyExc_ValueError,
                        "a persistent request cannot be pickled");
}

static PyObject *
prequest_get_active(PyObject *object, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(
        wm_py_prequest_is_under_way((wm_prequest_t *)object));
}

static PyObject *
prequest_get_kept(PyObject *object, void *Py_UNUSED(unused))
{
    PyObject *kept = ((wm_prequest_t *)object)->kept;
    return Py_NewRef(kept != NULL ? kept : Py_None);
}

static int
prequest_set_kept(PyObject *object, PyObject *value, void *Py_UNUSED(unused))
{
    wm_prequest_t *self = (wm_prequest_t *)object;
    PyObject *former = self->kept;
    self->kept = value == Py_None ? NULL : Py_XNewRef(value);
    Py_XDECREF(former);
    return 0;
}

static PyGetSetDef prequest_getters[] = {
    {"_active", prequest_get_active, NULL, "True if the request is active.",
     NULL},
    {"_kept", prequest_get_kept, prequest_set_kept,
     "What begins it, of those that Python begins; None: it is freed.", NULL},
    {0},
};

static PyObject *
not_partitioned(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(args),
                PyObject *Py_UNUSED(kwargs))
{
    wm_py_mpi_fail(MPI_ERR_REQUEST,
                   "the request is not partitioned: make a partitioned "
                   "request with Psend_init or Precv_init");
    return NULL;
}

#define NOT_PARTITIONED(name, parameters)                                     \
    {                                                                         \
        name, (PyCFunction)(void (*)(void))not_partitioned,                   \
            METH_VARARGS | METH_KEYWORDS,                                     \
            PyDoc_STR(name "($self, /, " parameters ")\n--\n\n"               \
                           "Of a partitioned request (Psend_init, "           \
                           "Precv_init) alone: raises\nMPI.Exception here.")  \
    }

static PyMethodDef prequest_methods[] = {
    {"Start", prequest_start, METH_NOARGS, prequest_start_doc},
    {"Startall", prequest_startall, METH_O | METH_CLASS,
     prequest_startall_doc},
    {"Free", wm_py_prequest_free, METH_NOARGS, prequest_free_doc},
    {"__reduce__", prequest_reduce, METH_NOARGS, prequest_reduce_doc},
    NOT_PARTITIONED("Pready", "partition"),
    NOT_PARTITIONED("Pready_range", "partition_low, partition_high"),
    NOT_PARTITIONED("Pready_list", "partitions"),
    NOT_PARTITIONED("Parrived", "partition"),
    {0},
};

PyDoc_STRVAR(prequest_doc,
             "Prequest(request=None)\n--\n\n"
             "A persistent message of a wm.Comm (Send_init, Recv_init): its\n"
             "buffer is read once, and the message is begun many times. The\n"
             "request is an MPI.Prequest, which any wait of mpi4py completes\n"
             "under MPI_THREAD_MULTIPLE.");

static PyType_Slot prequest_slots[] = {
    {Py_tp_doc, (void *)prequest_doc},
    {Py_tp_new, prequest_tp_new},
    {Py_tp_dealloc, wm_py_prequest_dealloc},
    {Py_tp_traverse, prequest_traverse},
    {Py_tp_clear, prequest_clear},
    {Py_tp_methods, prequest_methods},
    {Py_tp_getset, prequest_getters},
    {Py_tp_richcompare, prequest_richcompare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_nb_bool, prequest_bool},
    {0},
};

PyType_Spec wm_py_prequest_spec = {
    .name = "warpmpi.Prequest",
    .basicsize = sizeof(wm_prequest_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = prequest_slots,
};
