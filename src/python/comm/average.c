// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/average.h"

#include "comm/coll/call/half.h"
#include "comm/coll/call/reducible.h"
#include "python/comm/coll_args.h"
#include "python/comm/reduced.h"

bool
wm_py_average_is(PyObject *object)
{
    return object != NULL && Py_TYPE(object) == wm_py_state->average_type;
}

static int
refuse(const char *elements)
{
    return wm_py_fail(PyExc_TypeError,
                      "op: wm.AVG averages integers, floats and complex "
                      "numbers, not %s: give MPI.SUM, and divide the result",
                      elements);
}

int
wm_py_average_check(const wm_coll_t *call)
{
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    if (wm_coll_shape(call->kind)->prefix)
        return wm_py_fail(
            PyExc_TypeError,
            "op: %s has no wm.AVG, as each rank reduces another number of "
            "ranks: give MPI.SUM, and divide the result",
            wm_call_name(call->kind));
    return call->type == MPI_DATATYPE_NULL
                   || wm_coll_reducible(call, &type, &op)
               ? 0
               : refuse(wm_half_name(wm_half_number(call->type)));
}

PyDoc_STRVAR(
    averaged_doc,
    "_averaged(call, value, name, /)\n--\n\n"
    "Return the number of the element type of a buffer of a collective\n"
    "with wm.AVG. Raises TypeError if the call or the type has no average,\n"
    "and the exceptions of a message of the buffer, naming `name`.");

static PyObject *
averaged(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *called, *name;
    PyObject *value;
    wm_message_t message;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    if (!PyArg_ParseTuple(args, "sOs:_averaged", &called, &value, &name)
        || wm_py_message_parse_gaps(value, false, name, WM_GAPS_OF_ANY_ARRAYS,
                                    &message)
               < 0)
        return NULL;
    int code = wm_py_reduced_name(&message, MPI_SUM);
    const wm_coll_t call = {
        .kind = wm_py_coll_args_kind(called),
        .type = message.type,
        .size = message.size,
        .op = MPI_SUM,
        .averages = true,
    };
    if (code == 0)
        code = wm_py_average_check(&call);
    wm_py_message_release(&message);
    return code < 0 || !wm_coll_reducible(&call, &type, &op)
               ? NULL
               : PyLong_FromLong(type);
}

static PyObject *
average_repr(PyObject *Py_UNUSED(self))
{
    return PyUnicode_FromString("warpmpi.AVG");
}

// There is one object, warpmpi.AVG: copies and pickles name it.
static PyObject *
average_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
    return PyUnicode_FromString("AVG");
}

static PyMethodDef methods[] = {
    {"__reduce__", average_reduce, METH_NOARGS, NULL},
    {0},
};

PyDoc_STRVAR(average_doc,
             "The operation of wm.AVG: the average over the ranks.\n\n"
             "The sum in rank order, divided by the number of ranks. The\n"
             "quotient of integers is truncated, as NCCL's ncclAvg. For\n"
             "collectives of a wm.Comm that reduce; plain mpi4py refuses it.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)average_doc},
    {Py_tp_repr, average_repr},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec wm_py_average_spec = {
    .name = "warpmpi._Average",
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyMethodDef wm_py_average_functions[] = {
    {"_averaged", averaged, METH_VARARGS, averaged_doc},
    {0},
};
