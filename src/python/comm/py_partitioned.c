// SPDX-License-Identifier: BSD-3-Clause
// Psend_init and Precv_init of communicators, and their request type.
#include <pthread.h>
#include <string.h>

#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/message/partitioned.h"
#include "python/comm/calls.h"
#include "python/message/blocks.h"
#include "python/request/handles.h"
#include "python/request/prequest.h"

typedef struct {
    wm_prequest_t base;
    int tag;               // the user's tag; the envelope has the number
    wm_counted_t *counted; // owner of the number; NULL: none
    int count;             // number of partitions
    char *ready;           // for each partition: 1 if it is ready
    unsigned marks;        // calls under way that mark partitions
    wm_partitions_t partitions;
} partitioned_t;

// Ends a request without its message, and frees its number.
static void
retire(partitioned_t *self)
{
    wm_request_t *request = &self->base.request;
    if (wm_is_child())
        return;
    if (!self->base.receives && self->partitions.missing > 0
        && wm_engine_check(NULL) == 0 && wm_py_request_is_active(request)) {
        wm_op_t *gate = request->op;
        Py_BEGIN_ALLOW_THREADS;
        wm_error_t err;
        wm_error_set(&err, WM_ERR_MPI, MPI_ERR_REQUEST,
                     "the partitioned request was freed before all its "
                     "partitions were ready");
        wm_gate_fail(gate, &err);
        Py_END_ALLOW_THREADS;
    }
    WM_PY_UNLOCKED(wm_partitions_forget(&self->partitions));
    if (self->counted != NULL)
        wm_partitioned_give_back(self->counted, self->base.envelope.tag);
    self->counted = NULL;
}

static void
partitioned_dealloc(PyObject *object)
{
    partitioned_t *self = (partitioned_t *)object;
    PyObject_GC_UnTrack(object);
    wm_py_handles_adopt(object);
    retire(self);
    PyMem_Free(self->ready);
    pthread_mutex_destroy(&self->partitions.lock);
    wm_py_prequest_dealloc(object);
}

// Makes an operation under way for the request. Returns NULL with an
// exception.
static wm_op_t *
start(partitioned_t *self)
{
    wm_prequest_t *base = &self->base;
    wm_op_t *gate = wm_gate_new(base->channel.comm, base->envelope.rank,
                                self->tag, base->receives);
    if (gate == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (wm_py_request_begun(&base->request, gate, MPI_REQUEST_NULL) < 0) {
        wm_py_request_forget(&base->request);
        return NULL;
    }
    return gate;
}

PyDoc_STRVAR(start_doc,
             "Start($self, /)\n--\n\n"
             "Begin the message once more. No partition of a send is ready.");

static PyObject *
partitioned_start(PyObject *object, PyObject *Py_UNUSED(unused))
{
    partitioned_t *self = (partitioned_t *)object;
    wm_prequest_t *base = &self->base;
    wm_buffer_t buffer;
    wm_error_t err;
    wm_op_t *gate = NULL;
    int code = 0;
    if (wm_py_prequest_prepare(base) < 0)
        return NULL;
    if (!base->receives || wm_py_prequest_again(base, &buffer) == 0) {
        gate = start(self);
        if (gate == NULL && base->receives)
            wm_buffer_release(&buffer);
    }
    if (gate != NULL && base->receives) {
        WM_PY_UNLOCKED(code = wm_gate_begin(gate, base->channel.comm,
                                            &base->envelope, &buffer, &err));
    }
    else if (gate != NULL) {
        memset(self->ready, 0, (size_t)self->count);
        self->partitions.missing = self->count;
    }
    base->starting = false;
    if (code < 0) {
        wm_py_request_retire(&base->request);
        return wm_py_raise(&err);
    }
    return gate != NULL ? Py_NewRef(Py_None) : NULL;
}

// Reports `marked` partitions as ready. Returns -1 with an exception: then
// they are not ready, unless the message has `begun` and failed.
static int
mark(partitioned_t *self, int marked, bool *begun)
{
    const wm_envelope_t *envelope = &self->base.envelope;
    wm_buffer_t buffer;
    wm_error_t err;
    wm_op_t *gate = self->base.request.op;
    int code = -1;
    *begun = false;
    wm_op_retain(gate);
    ++self->marks; // the array may run Python code
    if (wm_py_prequest_again(&self->base, &buffer) == 0) {
        WM_PY_UNLOCKED(
            code = wm_partitions_ready(&self->partitions, marked, gate,
                                       self->base.channel.comm, envelope,
                                       &buffer, begun, &err));
        if (code < 0)
            wm_py_raise(&err);
    }
    --self->marks;
    wm_op_release(gate);
    return code < 0 ? -1 : 0;
}

// Checks that this is a partition of a request of that direction.
static int
check(const partitioned_t *self, bool receives, long partition)
{
    const wm_prequest_t *base = &self->base;
    if (wm_py_check_running() < 0)
        return -1;
    if (base->comm == NULL)
        return wm_py_mpi_fail(MPI_ERR_REQUEST,
                              "the partitioned request was freed");
    if (base->receives != receives)
        return wm_py_mpi_fail(MPI_ERR_REQUEST, "%s",
                              receives ? "Parrived is for receives: call "
                                         "Parrived of a request of Precv_init"
                                       : "Pready is for sends: call Pready of "
                                         "a request of Psend_init");
    if (partition >= 0 && partition < self->count)
        return 0;
    return wm_py_mpi_fail(
        MPI_ERR_ARG,
        "partition=%ld is not a partition of this request: use 0 to %d",
        partition, self->count - 1);
}

// Marks partitions, none of which was ready before.
static int
claim(partitioned_t *self, const long *partitions, Py_ssize_t count)
{
    if (check(self, false, 0) < 0)
        return -1;
    if (!wm_py_request_is_active(&self->base.request) || self->base.starting)
        return wm_py_mpi_fail(
            MPI_ERR_REQUEST,
            "the partitioned request is not active: Start() it first");
    for (Py_ssize_t i = 0; i < count; ++i) {
        int code = check(self, false, partitions[i]);
        if (code == 0 && self->ready[partitions[i]])
            code = wm_py_mpi_fail(
                MPI_ERR_ARG, "partition=%ld is ready already", partitions[i]);
        if (code < 0) {
            while (--i >= 0)
                self->ready[partitions[i]] = 0;
            return -1;
        }
        self->ready[partitions[i]] = 1;
    }
    return 0;
}

static PyObject *
make_ready(partitioned_t *self, const long *partitions, Py_ssize_t count)
{
    if (claim(self, partitions, count) < 0)
        return NULL;
    bool begun = false;
    int code = count > 0 ? mark(self, (int)count, &begun) : 0;
    if (code < 0 && !begun)
        for (Py_ssize_t i = 0; i < count; ++i)
            self->ready[partitions[i]] = 0;
    return code == 0 ? Py_NewRef(Py_None) : NULL;
}

// Converts a partition's number, for PyArg_Parse.
static int
convert(PyObject *object, void *result)
{
    int partition = 0;
    if (wm_py_argument_int(object, "partition", &partition) < 0)
        return 0;
    *(long *)result = partition;
    return 1;
}

PyDoc_STRVAR(
    pready_doc,
    "Pready($self, /, partition)\n--\n\n"
    "Mark a partition of a send as ready, after the work that is on\n"
    "the array's stream now. The message begins when the last\n"
    "partition is ready. Raises MPI.Exception for a partition that is\n"
    "ready already or does not exist.");

static PyObject *
pready(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"partition", NULL};
    long partition;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:Pready", names, convert,
                                     &partition))
        return NULL;
    return make_ready((partitioned_t *)object, &partition, 1);
}

// Marks all partitions of a sequence.
static PyObject *
make_all_ready(partitioned_t *self, PyObject *given)
{
    PyObject *result = NULL, *list = PySequence_Tuple(given);
    if (list == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(list);
    long *all = PyMem_New(long, (size_t)count + 1);
    if (all == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); ++i)
        all[i] = PyLong_AsLong(PyTuple_GET_ITEM(list, i));
    if (!PyErr_Occurred())
        result = make_ready(self, all, count);
    PyMem_Free(all);
    Py_DECREF(list);
    return result;
}

PyDoc_STRVAR(pready_range_doc,
             "Pready_range($self, /, partition_low, partition_high)\n--\n\n"
             "Mark the partitions from partition_low to partition_high as\n"
             "ready, both included.");

static PyObject *
pready_range(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"partition_low", "partition_high", NULL};
    partitioned_t *self = (partitioned_t *)object;
    long low, high;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&:Pready_range", names,
                                     convert, &low, convert, &high)
        || check(self, false, low) < 0 || check(self, false, high) < 0)
        return NULL;
    PyObject *range = PyObject_CallFunction((PyObject *)&PyRange_Type, "ll",
                                            low, high + 1);
    PyObject *result = range != NULL ? make_all_ready(self, range) : NULL;
    Py_XDECREF(range);
    return result;
}

PyDoc_STRVAR(pready_list_doc, "Pready_list($self, /, partitions)\n--\n\n"
                              "Mark all partitions of a list as ready.");

static PyObject *
pready_list(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"partitions", NULL};
    PyObject *given;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "O:Pready_list", names,
                                       &given)
               ? make_all_ready((partitioned_t *)object, given)
               : NULL;
}

PyDoc_STRVAR(parrived_doc,
             "Parrived($self, /, partition)\n--\n\n"
             "Return True if a partition of a receive has arrived, or if the\n"
             "request is inactive. All partitions arrive together. Raises\n"
             "MPI.Exception, or the exceptions of Wait.");

static PyObject *
parrived(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"partition", NULL};
    partitioned_t *self = (partitioned_t *)object;
    long partition;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:Parrived", names,
                                     convert, &partition)
        || check(self, true, partition) < 0)
        return NULL;
    if (!wm_py_request_is_active(&self->base.request))
        Py_RETURN_TRUE;
    wm_op_t *gate = self->base.request.op;
    wm_op_retain(gate);
    if (!atomic_load(&gate->done))
        WM_PY_UNLOCKED(wm_engine_look(gate));
    bool done = atomic_load(&gate->done);
    wm_error_t err = gate->error;
    wm_op_release(gate);
    if (done && err.code != 0)
        return wm_py_raise(&err);
    return PyBool_FromLong(done);
}

PyDoc_STRVAR(free_doc,
             "Free($self, /)\n--\n\n"
             "Let go of the request; a message under way ends by itself.");

static PyObject *
partitioned_free(PyObject *object, PyObject *unused)
{
    partitioned_t *self = (partitioned_t *)object;
    if (self->marks > 0) {
        wm_py_mpi_fail(MPI_ERR_REQUEST,
                       "another thread is in Pready of this request: free the "
                       "request after Pready has returned");
        return NULL;
    }
    if (!self->base.starting) {
        self->base.starting = true; // retire() lets other threads run
        retire(self);
        self->base.starting = false;
    }
    return wm_py_prequest_free(object, unused);
}

static PyObject *
partitioned_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = wm_py_state->prequest_type->tp_new(type, args, kwargs);
    if (self != NULL)
        pthread_mutex_init(&((partitioned_t *)self)->partitions.lock, NULL);
    return self;
}

static PyMethodDef methods[] = {
    {"Start", partitioned_start, METH_NOARGS, start_doc},
    {"Free", partitioned_free, METH_NOARGS, free_doc},
    WM_PY_KEYWORDS("Pready", pready),
    WM_PY_KEYWORDS("Pready_range", pready_range),
    WM_PY_KEYWORDS("Pready_list", pready_list),
    WM_PY_KEYWORDS("Parrived", parrived),
    {0},
};

PyDoc_STRVAR(partitioned_doc,
             "A message of a wm.Comm in partitions (Psend_init, Precv_init).\n"
             "The partitions are made ready one by one and sent as one\n"
             "message.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)partitioned_doc},
    {Py_tp_new, partitioned_new},
    {Py_tp_dealloc, partitioned_dealloc},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec wm_py_partitioned_spec = {
    .name = "warpmpi.PartitionedRequest",
    .basicsize = sizeof(partitioned_t),
    .flags = Py_TPFLAGS_DEFAULT, // garbage collection as in its base
    .slots = slots,
};

// Checks that all partitions have equally many elements.
static int
check_partitions(const wm_message_t *message, int partitions)
{
    size_t size = message->size,
           count = size > 0 ? message->buffer.nbytes / size : 0;
    if (count % (size_t)partitions == 0)
        return 0;
    return wm_py_fail(
        PyExc_ValueError,
        "buf: %zu elements cannot be divided into %d equal partitions", count,
        partitions);
}

// Makes an inactive request from valid arguments.
static partitioned_t *
new_request(PyObject *comm, const wm_channel_t *channel, PyObject *given,
            int partitions, bool receives, wm_envelope_t *envelope)
{
    wm_message_t message;
    PyObject *buf = wm_py_blocks_of_all(given, partitions);
    if (buf == NULL
        || wm_py_message_parse_for(envelope->rank, buf, receives, "buf",
                                   &message)
               < 0) {
        Py_XDECREF(buf);
        return NULL;
    }
    wm_py_channel_keep(channel, &message);
    partitioned_t *self = NULL;
    if (envelope->rank != MPI_PROC_NULL
        && check_partitions(&message, partitions) < 0)
        wm_py_message_release(&message);
    else
        self = (partitioned_t *)wm_py_prequest_new(
            wm_py_state->partitioned_type, comm, channel, buf, receives,
            envelope, &message);
    Py_DECREF(buf);
    if (self == NULL)
        return NULL;
    self->tag = envelope->tag;
    self->count = partitions;
    self->ready = PyMem_Calloc((size_t)partitions, 1);
    wm_error_t err;
    if (self->ready == NULL)
        PyErr_NoMemory();
    else if (envelope->rank != MPI_PROC_NULL
             && wm_partitioned_number(channel->comm, envelope->rank, self->tag,
                                      receives, &self->base.envelope.tag,
                                      &self->counted, &err)
                    < 0) {
        self->counted = NULL;
        wm_py_raise(&err);
    }
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return self;
}

static PyObject *
make(const char *function, PyObject *comm, PyObject *const *args,
     Py_ssize_t given, PyObject *keywords, bool receives)
{
    const char *rank_name = receives ? "source" : "dest";
    const char *const names[] = {
        "buf", "partitions", rank_name, "tag", "info",
    };
    PyObject *values[5];
    wm_channel_t channel;
    wm_error_t err;
    int partitions;
    // mpi4py's defaults; for a receive MPI refuses them.
    int rank = MPI_ANY_SOURCE, tag = receives ? MPI_ANY_TAG : 0;
    if (wm_py_arguments(function, names, 5, receives ? 2 : 3, args, given,
                        keywords, values)
            < 0
        || wm_py_channel_get(comm, &channel) < 0
        || wm_py_argument_int(values[1], "partitions", &partitions) < 0
        || wm_py_argument_int(values[2], rank_name, &rank) < 0
        || wm_py_argument_int(values[3], "tag", &tag) < 0)
        return NULL;
    if (partitions < 1)
        return PyErr_Format(PyExc_ValueError,
                            "partitions=%d: there must be at least one",
                            partitions);
    if (wm_comm_check(channel.comm, rank_name, rank, tag,
                      receives && rank == MPI_PROC_NULL, &err)
        < 0)
        return wm_py_raise(&err);
    wm_envelope_t envelope = wm_py_channel_envelope(&channel, rank, tag,
                                                    false);
    return (PyObject *)new_request(comm, &channel, values[0], partitions,
                                   receives, &envelope);
}

const char wm_py_comm_Psend_init_doc[] =
    "Psend_init($self, /, buf, partitions, dest, tag=0, info=None)\n--\n\n"
    "Make a partitioned send of a GPU or host array. After Start, Pready of "
    "the\n"
    "request marks each partition as ready, on any thread. The\n"
    "message is sent when the last partition is ready. All partitions\n"
    "have the same number of elements; a count in buf is that of one\n"
    "partition. info is not used. Only Precv_init receives the\n"
    "message, in the order in which both ranks made their requests.\n"
    "Raises ValueError (partitions), MPI.Exception (dest, tag) and\n"
    "the exceptions of Isend.";

PyObject *
wm_py_comm_Psend_init(PyObject *self, PyObject *const *args, Py_ssize_t given,
                      PyObject *keywords)
{
    return make("Psend_init", self, args, given, keywords, false);
}

const char wm_py_comm_Precv_init_doc[] =
    "Precv_init($self, /, buf, partitions, source=mpi4py.MPI.ANY_SOURCE, "
    "tag=mpi4py.MPI.ANY_TAG, info=None)\n--\n\n"
    "Make a partitioned receive into a GPU or host array. As in MPI,\n"
    "source and tag must be given, without wildcards. The number of "
    "partitions\n"
    "may differ from the sender's. Raises ValueError (partitions),\n"
    "MPI.Exception (source, tag) and the exceptions of Irecv.";

PyObject *
wm_py_comm_Precv_init(PyObject *self, PyObject *const *args, Py_ssize_t given,
                      PyObject *keywords)
{
    return make("Precv_init", self, args, given, keywords, true);
}
