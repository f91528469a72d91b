// SPDX-License-Identifier: BSD-3-Clause
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/wait.h"
#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "python/comm/calls.h"
#include "python/comm/matched.h"
#include "python/message/channel.h"
#include "python/request/py_request.h"

static wm_op_t *
begin(const char *function, bool matched, PyObject *self,
      PyObject *const *args, Py_ssize_t given, PyObject *keywords,
      MPI_Status **status)
{
    static const char *const names[] = {"source", "tag", "status"};
    PyObject *values[3];
    wm_channel_t channel;
    int source = MPI_ANY_SOURCE, tag = MPI_ANY_TAG, code;
    wm_error_t err;
    wm_op_t *op;
    if (wm_py_arguments(function, names, 3, 0, args, given, keywords, values)
            < 0
        || wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(values[0], "source", &source) < 0
        || wm_py_argument_int(values[1], "tag", &tag) < 0
        || wm_py_mpi_status(values[2], "status", status) < 0)
        return NULL;
    WM_PY_UNLOCKED(
        code = wm_probe_begin(channel.comm, source, tag, matched, &op, &err));
    return wm_py_result(code, &err) < 0 ? NULL : op;
}

// Ends a probe; returns 0 or -1. If the wait was interrupted, a message that
// was matched nevertheless goes back.
static int
finish(wm_op_t *op, int code)
{
    if (code == 0)
        return 0;
    Py_BEGIN_ALLOW_THREADS;
    wm_unexpected_t *matched = wm_probe_matched(op);
    if (matched != NULL)
        wm_matched_return(op->comm, matched);
    Py_END_ALLOW_THREADS;
    wm_op_release(op);
    return code;
}

static wm_op_t *
find(const char *function, bool matched, PyObject *self, PyObject *const *args,
     Py_ssize_t given, PyObject *keywords)
{
    MPI_Status *status;
    wm_op_t *op = begin(function, matched, self, args, given, keywords,
                        &status);
    wm_hang_call(function, false);
    if (op == NULL || finish(op, wm_py_wait(op, status)) < 0)
        return NULL;
    return op;
}

// Probes without waiting; sets *found to true if there is a message.
static wm_op_t *
look(const char *function, bool matched, PyObject *self, PyObject *const *args,
     Py_ssize_t given, PyObject *keywords, bool *found)
{
    MPI_Status *status;
    wm_op_t *op = begin(function, matched, self, args, given, keywords,
                        &status);
    if (op == NULL)
        return NULL;
    wm_error_t err;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_poll();
    wm_op_cancel(op); // has no effect if a message was found
    code = wm_op_wait(op, NULL, &err);
    *found = !op->result.cancelled;
    if (*found && status != NULL)
        wm_request_status(op, status);
    Py_END_ALLOW_THREADS;
    return finish(op, wm_py_waited(code, &err)) < 0 ? NULL : op;
}

const char wm_py_comm_Probe_doc[] = PyDoc_STR(
    "Probe($self, /, source=mpi4py.MPI.ANY_SOURCE, tag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Wait until a message can be received; `status` describes it.\n\n"
    "Returns True. The next receive that matches gets the message.\n"
    "Raises MPI.Exception (rank, tag).");

PyObject *
wm_py_comm_Probe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                 PyObject *keywords)
{
    wm_op_t *op = find("Probe", false, self, args, given, keywords);
    if (op == NULL)
        return NULL;
    wm_op_release(op);
    return Py_NewRef(Py_True);
}

const char wm_py_comm_Iprobe_doc[] = PyDoc_STR(
    "Iprobe($self, /, source=mpi4py.MPI.ANY_SOURCE, tag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Return True if a message can be received now; `status` describes\n"
    "it.\n\n"
    "Otherwise as Probe.");

PyObject *
wm_py_comm_Iprobe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                  PyObject *keywords)
{
    bool found;
    wm_op_t *op = look("Iprobe", false, self, args, given, keywords, &found);
    if (op == NULL)
        return NULL;
    wm_op_release(op);
    return PyBool_FromLong(found);
}

const char wm_py_comm_Mprobe_doc[] = PyDoc_STR(
    "Mprobe($self, /, source=mpi4py.MPI.ANY_SOURCE, tag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Wait for a message and match it. Only the Recv or Irecv of the\n"
    "wm.Message that is returned receives the message. Otherwise as\n"
    "Probe.");

PyObject *
wm_py_comm_Mprobe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                  PyObject *keywords)
{
    wm_op_t *op = find("Mprobe", true, self, args, given, keywords);
    if (op == NULL)
        return NULL;
    PyObject *message = wm_py_matched_new(self, op);
    wm_op_release(op);
    return message;
}

const char wm_py_comm_Improbe_doc[] = PyDoc_STR(
    "Improbe($self, /, source=mpi4py.MPI.ANY_SOURCE, tag=mpi4py.MPI.ANY_TAG, "
    "status=None)\n--\n\n"
    "Match a message that can be received now, and return it as a\n"
    "wm.Message, or None. Otherwise as Mprobe.");

PyObject *
wm_py_comm_Improbe(PyObject *self, PyObject *const *args, Py_ssize_t given,
                   PyObject *keywords)
{
    bool found;
    wm_op_t *op = look("Improbe", true, self, args, given, keywords, &found);
    if (op == NULL)
        return NULL;
    PyObject *message = found ? wm_py_matched_new(self, op)
                              : Py_NewRef(Py_None);
    wm_op_release(op);
    return message;
}
