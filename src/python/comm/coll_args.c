// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/coll_args.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "comm/coll/direct/participant.h"
#include "comm/message/element.h"
#include "comm/message/pattern.h"
#include "comm/coll/call/reducible.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/coll_engines.h"
#include "python/comm/average.h"
#include "python/comm/reduced.h"
#include "python/core/arguments.h"
#include "python/message/datatype.h"

wm_coll_kind_t
wm_py_coll_args_kind(const char *name)
{
    for (int kind = 0; kind < WM_COLL_KINDS; ++kind) {
        const wm_coll_row_t *row = wm_coll_row((wm_coll_kind_t)kind);
        if (row->name != NULL && row->arguments->count > 0
            && strcmp(row->name, name) == 0)
            return (wm_coll_kind_t)kind;
    }
    return WM_COLL_UNKNOWN;
}

bool
wm_py_coll_args_is_separate(wm_coll_kind_t kind)
{
    return wm_coll_row(kind)->sends == WM_SEPARATE;
}

static bool
is_nothing(PyObject *value)
{
    return value == NULL || value == Py_None || wm_py_mpi_is_in_place(value);
}

// Returns true if all buffers are memory of a GPU with no gaps but those that
// kernels step over, or all are contiguous host memory that no GPU uses.
static bool
is_all(const wm_coll_t *call, bool on_device)
{
    const wm_buffer_t *sides[] = {call->send, call->receive};
    for (int i = 0; i < 2; ++i) {
        const wm_buffer_t *its = sides[i];
        if (its == NULL)
            continue;
        if (wm_buffer_on_device(its) != on_device
            || (on_device ? its->pattern != NULL
                                && !wm_pattern_is_strided(its->pattern)
                          : its->pattern != NULL
                                || its->producer.kind != WM_PRODUCER_NONE))
            return false;
    }
    return true;
}

// Reads the counts of Reduce_scatter. Without counts mpi4py finds them itself,
// unless the call is in place.
static int
read_counts(PyObject *value, const wm_comm_t *comm, wm_py_coll_args_t *asked)
{
    wm_side_t *received = &asked->received;
    const wm_message_t *message = &received->message;
    const wm_message_t *all = asked->sent.given ? &asked->sent.message
                                                : message;
    wm_ranks_t group = wm_comm_group(comm, comm->rank);
    size_t total = 0;
    if (!received->given || group.count > WM_BARRIER_RANKS)
        return -1; // or `spans` has no room
    if (value == NULL || value == Py_None)
        return asked->sent.given ? 0 : -1;
    if (PyObject_CheckBuffer(value) && wm_py_message_on_device(value))
        return -1; // the host cannot read them
    PyObject *counts = PySequence_Tuple(value);
    if (counts == NULL || PyTuple_GET_SIZE(counts) != group.count) {
        Py_XDECREF(counts);
        return -1;
    }
    for (int rank = 0; rank < group.count; ++rank) {
        Py_ssize_t count = PyNumber_AsSsize_t(PyTuple_GET_ITEM(counts, rank),
                                              PyExc_OverflowError);
        size_t nbytes = count > 0 ? (size_t)count * message->size : 0;
        if (count < 0 || nbytes > all->buffer.nbytes)
            total = SIZE_MAX / 2; // counts do not match the buffer
        received->spans[rank] = (wm_span_t){total, nbytes};
        total += nbytes;
    }
    Py_DECREF(counts);
    if (PyErr_Occurred() || total != all->buffer.nbytes
        || (asked->sent.given
            && received->spans[comm->rank - group.first].nbytes
                   != message->buffer.nbytes))
        return -1;
    received->varies = true;
    return 0;
}

// Raises an error about the counts of a reduction, which do not fit; returns
// false.
static bool
refuse_counts(wm_coll_kind_t kind, const wm_message_t *sent,
              const wm_message_t *received, size_t blocks)
{
    size_t size = sent->size > 0 ? sent->size : 1;
    size_t given = sent->buffer.nbytes / size;
    size_t wanted = received->buffer.nbytes / size;
    if (kind == WM_COLL_REDUCE_SCATTER_BLOCK)
        PyErr_Format(PyExc_ValueError,
                     "%s: sendbuf has %zu elements, and recvbuf %zu for each "
                     "of %zu ranks: give a sendbuf of %zu elements",
                     wm_call_name(kind), given, wanted, blocks,
                     blocks * wanted);
    else
        PyErr_Format(PyExc_ValueError,
                     "%s: sendbuf has %zu elements, and recvbuf %zu: give "
                     "both the same number of elements",
                     wm_call_name(kind), given, wanted);
    return false;
}

// Raises an error about two element types; returns false.
static bool
refuse_types(wm_coll_kind_t kind, const wm_message_t *sent,
             const wm_message_t *received)
{
    PyErr_Format(PyExc_ValueError,
                 "%s: sendbuf is of %s, and recvbuf of %s: give both the same "
                 "element type",
                 wm_call_name(kind), wm_reducible_name_of(sent->type),
                 wm_reducible_name_of(received->type));
    return false;
}

// Returns true if both have one element type. Between hosts that of an array
// may have another of MPI's names, as a rank may not leave the call to mpi4py.
static bool
are_alike(const wm_py_coll_args_t *asked)
{
    const wm_message_t *sent = &asked->sent.message;
    const wm_message_t *received = &asked->received.message;
    return sent->type == received->type
           || (asked->sent.anywhere
               && (sent->datatype == NULL || received->datatype == NULL)
               && wm_element_number(sent->type)
                      == wm_element_number(received->type));
}

// Returns true if both buffers hold what the call reduces, as mpi4py sees it.
static bool
is_reduced(wm_coll_kind_t kind, const wm_py_coll_args_t *asked, size_t ranks)
{
    const wm_message_t *sent = &asked->sent.message;
    const wm_message_t *received = &asked->received.message;
    size_t blocks = kind == WM_COLL_REDUCE_SCATTER_BLOCK ? ranks : 1;
    if ((asked->sent.given && wm_py_reduced_is_bytes(sent))
        || (asked->received.given && wm_py_reduced_is_bytes(received)))
        return false;
    if (!asked->sent.given || !asked->received.given)
        return true;
    if (!are_alike(asked))
        return refuse_types(kind, sent, received);
    return kind == WM_COLL_REDUCE_SCATTER
           || sent->buffer.nbytes == blocks * received->buffer.nbytes
           || refuse_counts(kind, sent, received, blocks);
}

// Gives the call the elements that a datatype counts: MPI may be given them
// packed.
static void
name_elements(wm_coll_t *call)
{
    MPI_Datatype element = wm_py_datatype_element(call->type);
    wm_extent_t of = {.size = 1};
    if (element == MPI_DATATYPE_NULL
        || wm_py_datatype_measure(element, "buffer", &of) < 0)
        PyErr_Clear();
    else
        call->type = element;
    call->size = (size_t)of.size;
}

static int
find_neighbors(const wm_comm_t *comm, bool on_stream, wm_neighbors_t *sources,
               wm_neighbors_t *destinations)
{
    wm_error_t err;
    bool found;
    WM_PY_UNLOCKED(found = wm_neighbor_find(comm->user, comm->size, sources,
                                            destinations));
    if (!found && on_stream) {
        wm_error_set(&err, WM_ERR_MPI, MPI_ERR_TOPOLOGY,
                     "the communicator has no topology, or more than %d "
                     "neighbours: use a communicator of Create_cart, "
                     "Create_graph or Create_dist_graph",
                     WM_BARRIER_RANKS);
        wm_py_raise(&err);
    }
    return found ? 0 : -1;
}

// Raises the error that MPI has for a call with such an argument.
static int
refuse(const wm_py_coll_args_t *asked, int error, const char *text, int given,
       int last)
{
    char name[32];
    snprintf(name, sizeof name, "%s%s", asked->begins ? "I" : "",
             wm_call_name(asked->call.kind));
    if (asked->begins)
        name[1] = (char)tolower(name[1]);
    return wm_py_mpi_fail(error, text, name, given, last);
}

// Reads the root. Between groups it becomes a rank of both groups together;
// -1: another rank of this group.
static int
read_root(PyObject *value, const wm_comm_t *comm, wm_py_coll_args_t *asked)
{
    wm_ranks_t others = wm_comm_others(comm, comm->rank);
    int given = 0;
    if (wm_py_argument_int(value, "root", &given) < 0)
        return -1;
    bool inter = comm->split > 0;
    asked->call.root = inter && given == MPI_ROOT ? comm->rank
                       : inter && given == MPI_PROC_NULL
                           ? -1
                           : others.first + given;
    if ((inter && (given == MPI_ROOT || given == MPI_PROC_NULL))
        || (given >= 0 && given < others.count))
        return 0;
    return refuse(asked, MPI_ERR_ROOT,
                  "%s: root=%d is not a rank of this communicator: use 0 to "
                  "%d",
                  given, others.count - 1);
}

static int
read_op(PyObject *value, wm_py_coll_args_t *asked)
{
    asked->call.averages = wm_py_average_is(value);
    if (asked->call.averages)
        return 0; // of MPI_SUM
    if (wm_py_mpi_op(value, "op", &asked->call.op) < 0)
        return -1;
    return wm_reducible_reduces(asked->call.op)
               ? 0
               : refuse(asked, MPI_ERR_OP,
                        "%s: op: MPI.OP_NULL reduces nothing, and MPI.REPLACE "
                        "and MPI.NO_OP are for windows: give another op",
                        0, 0);
}

// Returns block i of a side; the buffer is one block, unless it is a v-form.
static wm_span_t
block_of(const wm_side_t *side, wm_block_form_t form, int i)
{
    return form == WM_VARYING ? side->spans[i]
                              : (wm_span_t){0, side->message.buffer.nbytes};
}

// Returns true if a rank receives into memory that it sends. A gather may have
// the rank's own block in its place.
static bool
lies_over(const wm_comm_t *comm, const wm_py_coll_args_t *asked)
{
    const wm_coll_row_t *row = wm_coll_row(asked->call.kind);
    const wm_shape_t *shape = &row->shape;
    const wm_buffer_t *sent = &asked->sent.message.buffer;
    const wm_buffer_t *received = &asked->received.message.buffer;
    int sends = row->sends == WM_VARYING ? comm->size : 1;
    int receives = row->receives == WM_VARYING ? comm->size : 1;
    size_t each = received->nbytes / (size_t)comm->size;
    wm_span_t own = row->receives == WM_VARYING
                        ? asked->received.spans[comm->rank]
                        : (wm_span_t){(size_t)comm->rank * each, each};
    if (sent->pattern != NULL || received->pattern != NULL
        || (shape->gathers && !shape->scatters && !shape->neighbors
            && sent->data == received->data + own.at
            && sent->nbytes == own.nbytes))
        return false;
    for (int i = 0; i < sends; ++i)
        for (int j = 0; j < receives; ++j) {
            wm_span_t from = block_of(&asked->sent, row->sends, i);
            wm_span_t to = block_of(&asked->received, row->receives, j);
            const char *read = sent->data + from.at;
            const char *written = received->data + to.at;
            if (from.nbytes > 0 && to.nbytes > 0 && read < written + to.nbytes
                && written < read + from.nbytes)
                return true;
        }
    return false;
}

// Refuses what MPI forbids: a reduction into the memory that it reads, and on
// a stream any overlap. Other calls of GPUs read a copy.
static int
refuse_overlap(const wm_comm_t *comm, const wm_py_coll_args_t *asked)
{
    const wm_buffer_t *sent = &asked->sent.message.buffer;
    const wm_buffer_t *received = &asked->received.message.buffer;
    bool reduces = wm_coll_shape(asked->call.kind)->reduces;
    if (!asked->sent.given || !asked->received.given || sent->nbytes == 0
        || !((reduces && sent->data == received->data)
             || (asked->sent.contiguous && lies_over(comm, asked))))
        return 0;
    return refuse(asked, MPI_ERR_BUFFER,
                  "%s: sendbuf and recvbuf are the same memory, or overlap: "
                  "give MPI.IN_PLACE, or a copy",
                  0, 0);
}

// The two functions below read the buffers that matter on this rank.

static int
read_between(wm_coll_kind_t kind, const wm_comm_t *comm,
             PyObject *const *values, bool reduces, wm_py_coll_args_t *asked)
{
    const wm_coll_t *call = &asked->call;
    const bool used[] = {wm_coll_sends(call, comm->rank),
                         wm_coll_receives(call, comm->rank)};
    const wm_coll_row_t *row = wm_coll_row(kind);
    const wm_block_form_t forms[] = {row->sends, row->receives};
    wm_side_t *sides[] = {&asked->sent, &asked->received};
    int blocks = kind == WM_COLL_REDUCE_SCATTER_BLOCK
                     ? wm_comm_group(comm, comm->rank).count
                     : wm_comm_others(comm, comm->rank).count;
    for (int i = 0; i < 2; ++i)
        if (used[i]
            && (is_nothing(values[i])
                || wm_py_side_read(values[i], i == 1, reduces, forms[i],
                                   blocks, NULL, sides[i])
                       < 0))
            return -1;
    return 0;
}

static int
read_within(wm_coll_kind_t kind, const wm_comm_t *comm,
            PyObject *const *values, bool reduces, wm_py_coll_args_t *asked)
{
    bool root = asked->call.root < 0 || asked->call.root == comm->rank;
    const wm_coll_row_t *row = wm_coll_row(kind);
    bool scatters = row->shape.outward;
    wm_neighbors_t sources, destinations;
    bool neighbors = row->shape.neighbors;
    if (neighbors
        && (find_neighbors(comm, asked->sent.contiguous, &sources,
                           &destinations)
                < 0
            || is_nothing(values[0]) || is_nothing(values[1])))
        return -1;
    // In place, recvbuf has a block for each rank, too.
    wm_block_form_t receives = kind == WM_COLL_REDUCE_SCATTER_BLOCK
                                       && is_nothing(values[0])
                                   ? WM_EQUAL
                                   : row->receives;
    if (is_nothing(values[0])
            ? root && (scatters || is_nothing(values[1]))
            : (root || !scatters)
                  && wm_py_side_read(
                         values[0], false, reduces, row->sends, comm->size,
                         neighbors ? &destinations : NULL, &asked->sent)
                         < 0)
        return -1;
    if (is_nothing(values[1])) {
        if (root && !scatters)
            return -1;
    }
    else if ((root || scatters)
             && !(root && scatters && wm_py_mpi_is_in_place(values[1]))
             && wm_py_side_read(values[1], true, reduces, receives, comm->size,
                                neighbors ? &sources : NULL, &asked->received)
                    < 0)
        return -1;
    return (!asked->sent.given && !asked->received.given)
                   || (!root && !asked->sent.given && !scatters)
               ? -1
               : 0;
}

// Returns true if a buffer has elements of MPI's own types.
static bool
is_plainly_typed(const wm_side_t *side)
{
    return !side->given || side->message.datatype == NULL
           || wm_py_datatype_is_predefined(side->message.type);
}

int
wm_py_coll_args_read(wm_comm_t *comm, PyObject *const *args, Py_ssize_t given,
                     PyObject *keywords, wm_py_coll_args_t *asked)
{
    PyObject *values[5] = {NULL};
    wm_coll_t *call = &asked->call;
    wm_coll_kind_t kind = call->kind;
    const wm_coll_arguments_t *arguments = wm_coll_row(kind)->arguments;
    int op = arguments->op, root = arguments->root;
    if (wm_py_arguments(wm_call_name(kind), arguments->names, arguments->count,
                        arguments->required, args, given, keywords, values)
        < 0)
        return -1;
    call->root = -1;
    call->op = MPI_SUM;
    call->split = comm->split;
    asked->sent.anywhere = asked->received.anywhere =
        !wm_comm_is_one_host(comm) && !asked->sent.contiguous
        && wm_coll_class_has_length(comm, call);
    bool reduces = op >= 0;
    if ((root >= 0 && read_root(values[root], comm, asked) < 0)
        || (reduces && values[op] != NULL && read_op(values[op], asked) < 0))
        return -1;
    if (kind == WM_COLL_BCAST) { // one buffer
        bool gives = call->root == comm->rank;
        values[1] = gives ? NULL : values[0];
        values[0] = gives ? values[0] : NULL;
    }
    int code = comm->split > 0
                   ? read_between(kind, comm, values, reduces, asked)
                   : read_within(kind, comm, values, reduces, asked);
    if (code < 0)
        return -1;
    for (int i = 0; i < 2; ++i)
        asked->arrays[i] = values[i] != NULL ? wm_py_message_array(values[i])
                                             : NULL;
    if (refuse_overlap(comm, asked) < 0)
        return -1;
    bool given_any = asked->sent.given || asked->received.given;
    const wm_side_t *side = asked->sent.given ? &asked->sent
                                              : &asked->received;
    if (reduces && given_any
        && ((asked->sent.given
             && wm_py_reduced_name(&asked->sent.message, call->op) < 0)
            || (asked->received.given
                && wm_py_reduced_name(&asked->received.message, call->op) < 0)
            || !is_reduced(kind, asked,
                           (size_t)wm_comm_group(comm, comm->rank).count)
            || (kind == WM_COLL_REDUCE_SCATTER
                && read_counts(values[2], comm, asked) < 0)))
        return -1;
    call->type = given_any ? side->message.type : MPI_DATATYPE_NULL;
    call->size = given_any ? side->message.size : 1;
    if (call->averages && wm_py_average_check(call) < 0)
        return -1;
    if (wm_py_coll_args_is_separate(kind)) {
        call->type = MPI_BYTE; // blocks have several types
        call->size = 1;
    }
    else if (!reduces && given_any && side->message.datatype != NULL)
        name_elements(call);
    call->send = asked->sent.given ? &asked->sent.message.buffer : NULL;
    call->receive = asked->received.given ? &asked->received.message.buffer
                                          : NULL;
    call->sends = asked->sent.varies ? asked->sent.spans : NULL;
    call->receives = asked->received.varies ? asked->received.spans : NULL;
    call->read = true;
    call->elementary = is_plainly_typed(&asked->sent)
                       && is_plainly_typed(&asked->received);
    call->on_device = is_all(call, true);
    call->on_host = is_all(call, false);
    return 0;
}

void
wm_py_coll_args_init(wm_coll_kind_t kind, bool begins,
                     wm_py_coll_args_t *asked)
{
    asked->begins = begins;
    asked->call = (wm_coll_t){.kind = kind};
    asked->sent.given = asked->received.given = false;
    asked->sent.varies = asked->received.varies = false;
    asked->sent.contiguous = asked->received.contiguous = false;
    asked->sent.anywhere = asked->received.anywhere = false;
}

void
wm_py_coll_args_release(wm_py_coll_args_t *asked)
{
    if (asked->sent.given)
        wm_py_message_release(&asked->sent.message);
    if (asked->received.given)
        wm_py_message_release(&asked->received.message);
}

// Asks the arrays again for the streams that come before the call.
int
wm_py_coll_args_refresh(wm_py_coll_args_t *asked)
{
    static const char *const names[] = {"sendbuf", "recvbuf"};
    wm_side_t *sides[] = {&asked->sent, &asked->received};
    for (int i = 0; i < 2; ++i) {
        wm_message_t *message = &sides[i]->message;
        wm_buffer_t buffer;
        if (!sides[i]->given)
            continue;
        if (wm_py_message_again(asked->arrays[i], names[i], message, &buffer)
            < 0)
            return -1;
        message->buffer.producer = buffer.producer;
        message->buffer.order = buffer.order;
        wm_buffer_release(&buffer);
    }
    return 0;
}

bool
wm_py_coll_args_is_plain(wm_coll_kind_t kind, const wm_comm_t *comm,
                         bool plain)
{
    bool silent = comm->split > 0 && wm_coll_shape(kind)->rooted;
    return plain && !silent;
}

PyDoc_STRVAR(
    collectives_doc,
    "_collectives()\n--\n\n"
    "Return the table of collectives: name, names of arguments, form of what\n"
    "is sent and of what is received (\"\", n, v or w), whether the root "
    "alone\n"
    "sends, or receives, and whether a rank may receive nothing.");

static PyObject *
collectives(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static const char *const forms[] = {"", "n", "v", "w"};
    PyObject *rows = PyList_New(0);
    for (int kind = 0; rows != NULL && kind < WM_COLL_KINDS; ++kind) {
        const wm_coll_row_t *row = wm_coll_row((wm_coll_kind_t)kind);
        if (row->name == NULL || row->arguments->count == 0)
            continue;
        const wm_shape_t *shape = &row->shape;
        PyObject *names = PyTuple_New(row->arguments->count);
        for (int i = 0; names != NULL && i < row->arguments->count; ++i)
            PyTuple_SET_ITEM(names, i,
                             PyUnicode_FromString(row->arguments->names[i]));
        PyObject *made = Py_BuildValue(
            "sNssNNN", row->name, names, forms[row->sends],
            forms[row->receives],
            PyBool_FromLong(shape->rooted && shape->outward),
            PyBool_FromLong(shape->rooted && !shape->outward),
            PyBool_FromLong(shape->neighbors
                            || (shape->prefix && !shape->inclusive)));
        if (made == NULL || PyErr_Occurred() || PyList_Append(rows, made) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(made);
    }
    return rows;
}

PyDoc_STRVAR(engines_doc,
             "_coll_engines()\n--\n\n"
             "Return a dict: the calls that each engine of collectives has\n"
             "started in this process, in the order of preference.");

static PyObject *
coll_engines(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const wm_coll_engine_t *engine;
    PyObject *counts = PyDict_New();
    for (int i = 0; counts != NULL && (engine = wm_coll_engines_at(i)) != NULL;
         ++i) {
        PyObject *count = PyLong_FromLongLong(wm_coll_engines_started(i));
        if (count == NULL
            || PyDict_SetItemString(counts, engine->name, count) < 0)
            Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

PyDoc_STRVAR(libraries_doc,
             "_coll_libraries()\n--\n\n"
             "Open the libraries of the engines of collectives. Return for\n"
             "each its engine's name, its title, what to do where it is\n"
             "missing, its version, its path, and None; or None, None, and\n"
             "why there is none.");

static PyObject *
library_row(const wm_coll_engine_t *engine)
{
    const wm_coll_library_t *library = engine->library;
    const char *version = NULL, *path = NULL;
    wm_error_t err;
    int code;
    WM_PY_UNLOCKED(code = library->find(&version, &path, &err));
    return Py_BuildValue("ssszzz", engine->name, library->title, library->cure,
                         version, path, code < 0 ? err.text : NULL);
}

static PyObject *
coll_libraries(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const wm_coll_engine_t *engine;
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows != NULL && (engine = wm_coll_engines_at(i)) != NULL;
         ++i) {
        if (engine->library == NULL)
            continue;
        PyObject *row = library_row(engine);
        if (row == NULL || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

PyMethodDef wm_py_coll_args_functions[] = {
    {"_coll_engines", coll_engines, METH_NOARGS, engines_doc},
    {"_collectives", collectives, METH_NOARGS, collectives_doc},
    {"_coll_libraries", coll_libraries, METH_NOARGS, libraries_doc},
    {0},
};
