// SPDX-License-Identifier: BSD-3-Clause
#include "python/probe.h"

#include "comm/progress.h"
#include "python/channel.h"
#include "python/mpi.h"
#include "python/request.h"

static wm_op_t *
begin(const char *function, PyObject *self, PyObject *const *args,
      Py_ssize_t given, PyObject *keywords, MPI_Status **status)
{
    static const char *const names[] = {"source", "tag", "status"};
    PyObject *values[3];
    wm_channel_t channel;
    int source = MPI_ANY_SOURCE, tag = MPI_ANY_TAG, code;
    wm_error_t err;
    wm_op_t *op;
    if (wm_arguments(function, names, 3, 0, args, given, keywords, values) < 0
        || wm_channel_get(self, &channel) < 0
        || wm_argument_int(values[0], "source", &source) < 0
        || wm_argument_int(values[1], "tag", &tag) < 0
        || wm_mpi_status(values[2], "status", status) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_probe_begin(channel.comm, source, tag, &op, &err);
    Py_END_ALLOW_THREADS;
    if (code < 0) {
        wm_raise(&err);
        return NULL;
    }
    return op;
}

const char wm_comm_probe_doc[] = PyDoc_STR(
    "Probe($self, /, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None)"
    "\n--\n\n"
    "Wait until a message could be received; `status` tells of it.\n\n"
    "Returns True. Sees messages of the upper-case calls alone; the next\n"
    "receive that matches gets it. Raises MPI.Exception (rank, tag).");

PyObject *
wm_comm_probe(PyObject *self, PyObject *const *args, Py_ssize_t given,
              PyObject *keywords)
{
    MPI_Status *status;
    wm_op_t *op = begin("Probe", self, args, given, keywords, &status);
    if (op == NULL)
        return NULL;
    int code = wm_python_wait(op, status);
    wm_op_release(op);
    return code < 0 ? NULL : Py_NewRef(Py_True);
}

const char wm_comm_iprobe_doc[] = PyDoc_STR(
    "Iprobe($self, /, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None)"
    "\n--\n\n"
    "Whether a message could be received now; `status` tells of it.\n\n"
    "Otherwise as Probe.");

PyObject *
wm_comm_iprobe(PyObject *self, PyObject *const *args, Py_ssize_t given,
               PyObject *keywords)
{
    MPI_Status *status;
    wm_op_t *op = begin("Iprobe", self, args, given, keywords, &status);
    if (op == NULL)
        return NULL;
    wm_error_t err;
    int code;
    bool found;
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_poll();
    wm_op_cancel(op); // too late where it was found
    code = wm_op_wait(op, NULL, &err);
    Py_END_ALLOW_THREADS;
    found = !op->result.cancelled;
    code = wm_python_waited(op, code, &err, found ? status : NULL);
    wm_op_release(op);
    return code < 0 ? NULL : PyBool_FromLong(found);
}
