// SPDX-License-Identifier: BSD-3-Clause
// Methods that choose by the handle of the communicator: our method serves
// handles of ours that are not host-only, MPI the others. Our own types have
// such methods for messages and objects; after install() mpi4py's types have
// them for all calls. If the handle is one of ours but the object is not, our
// method gets an object of our type.
#include <stddef.h>
#include <structmember.h>

#include "comm/comm/comm.h"
#include "comm/comm/host_only.h"
#include "comm/link/link.h"
#include "cuda/device.h"
#include "python/core/arguments.h"
#include "python/core/mpi4py.h"
#include "python/message/specification.h"
#include "python/view/view.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *stock; // mpi4py's own method, or in our types its `_Passing`
    PyObject *rows;  // a tuple of (type of mpi4py, our type, method or None)
    PyObject *dict;  // name, documentation and signature
    int messages;    // 1: the method sends memory, not objects
} dispatch_t;

// Returns the row of a type, borrowed; NULL if there is none.
static PyObject *
dispatch_row(const dispatch_t *self, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->rows); ++i) {
        PyObject *row = PyTuple_GET_ITEM(self->rows, i);
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(row, 0);
        if (PyType_IsSubtype(type, base))
            return row;
    }
    return NULL;
}

// Returns true for the most common buffers on the host, and for ranks and
// tags, without a query.
static bool
dispatch_is_host(PyObject *value)
{
    if ((PyList_CheckExact(value) || PyTuple_CheckExact(value))
        && PySequence_Fast_GET_SIZE(value) > 0)
        value = PySequence_Fast_ITEMS(value)[0];
    return PyLong_CheckExact(value) || PyBytes_CheckExact(value)
           || PyByteArray_CheckExact(value)
           || wm_py_view_is_plain(value, false)
           || (PyObject *)Py_TYPE(value) == wm_py_state->numpy_array_type;
}

// Returns 1 if an argument is GPU memory, 0 if none is; -1 with the exception
// of an argument's own code.
static int
dispatch_find_device(PyObject *const *args, Py_ssize_t count)
{
    int found = 0;
    for (Py_ssize_t i = 1; i < count && found == 0; ++i)
        if (!dispatch_is_host(args[i]))
            found = wm_py_message_claims_device(args[i]);
    return found;
}

// Refuses GPU memory, unless MPI can read it: MPI would read it as host
// memory.
static int
dispatch_refuse_device(const dispatch_t *self, PyObject *const *args,
                       Py_ssize_t count)
{
    int found = dispatch_find_device(args, count);
    if (found <= 0 || wm_mpi_is_cuda_aware() == 1)
        return found < 0 ? -1 : 0;
    PyObject *name = PyObject_GetAttrString(self->stock, "__name__");
    if (name != NULL)
        PyErr_Format(
            PyExc_TypeError,
            "%U: a buffer is GPU memory, and warpmpi does not know the "
            "communicator: the communicator was made before wm.install(), or "
            "by another library, or is being freed; call wm.Comm(comm) on all "
            "its ranks, or give host memory",
            name);
    Py_XDECREF(name);
    return -1;
}

// Returns true if our method reports what is wrong with a communicator of ours
// to which nothing is attached.
static bool
dispatch_is_refused(const dispatch_t *self, PyObject *object, MPI_Comm handle)
{
    PyObject *row = dispatch_row(self, Py_TYPE(object));
    return row != NULL
           && PyObject_TypeCheck(object,
                                 (PyTypeObject *)PyTuple_GET_ITEM(row, 1))
           && (handle == MPI_COMM_NULL || !wm_host_only_was_asked());
}

typedef enum { DISPATCH_FAILED, DISPATCH_STOCK, DISPATCH_OURS } dispatch_to_t;

// Chooses who does a call on a handle: mpi4py's own method, or ours. `comm`:
// what is attached, or NULL.
static dispatch_to_t
dispatch_choose(const dispatch_t *self, PyObject *const *args,
                Py_ssize_t count, MPI_Comm handle, const wm_comm_t *comm)
{
    if (comm == NULL ? !dispatch_is_refused(self, args[0], handle)
                     : comm->host_only)
        return wm_device_count() > 0
                       && dispatch_refuse_device(self, args, count) < 0
                   ? DISPATCH_FAILED
                   : DISPATCH_STOCK;
    if (comm == NULL || !self->messages || !wm_host_only_by_mpi())
        return DISPATCH_OURS;
    int found = dispatch_find_device(args, count);
    if (found < 0)
        return DISPATCH_FAILED;
    return found > 0 ? DISPATCH_OURS : DISPATCH_STOCK;
}

// Calls our method on an object of our type over the same handle, which stays
// the user's.
static PyObject *
dispatch_stand_in_call(PyObject *method, PyTypeObject *type, MPI_Comm handle,
                       PyObject *const *args, Py_ssize_t given,
                       PyObject *names)
{
    PyObject *stand_in = wm_py_mpi_comm_of(type, handle), *result = NULL;
    if (stand_in != NULL)
        result = wm_py_call_with(method, stand_in, args + 1, given - 1, names);
    Py_XDECREF(stand_in);
    return result;
}

static PyObject *
dispatch_call(PyObject *object, PyObject *const *args, size_t flags,
              PyObject *names)
{
    const dispatch_t *self = (dispatch_t *)object;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    Py_ssize_t count = given + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
    MPI_Comm handle;
    if (given == 0 || !wm_py_mpi_is_comm(args[0], &handle))
        return PyObject_Vectorcall(self->stock, args, flags, names);
    const wm_comm_t *comm = wm_comm_find(handle);
    if (comm == NULL && wm_py_check_running() < 0)
        return NULL; // MPI would end the job
    PyObject *row = NULL;
    switch (dispatch_choose(self, args, count, handle, comm)) {
    case DISPATCH_FAILED:
        return NULL;
    case DISPATCH_OURS:
        row = dispatch_row(self, Py_TYPE(args[0]));
        if (row == NULL && comm != NULL) // row of MPI.Comm
            row = dispatch_row(self, wm_py_mpi_comm_type(comm->whole != comm));
        break;
    case DISPATCH_STOCK:
        break;
    }
    PyObject *method = row != NULL ? PyTuple_GET_ITEM(row, 2) : Py_None;
    if (method == Py_None)
        return PyObject_Vectorcall(self->stock, args, flags, names);
    PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(row, 1);
    return PyObject_TypeCheck(args[0], type)
               ? PyObject_Vectorcall(method, args, flags, names)
               : dispatch_stand_in_call(method, type, handle, args, given,
                                        names);
}

static PyObject *
dispatch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *stock, *rows, *base, *ours, *method;
    int messages;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "_Dispatch() takes no keywords");
    if (!PyArg_ParseTuple(args, "OO!p:_Dispatch", &stock, &PyTuple_Type, &rows,
                          &messages))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!O!O", &PyType_Type,
                              &base, &PyType_Type, &ours, &method))
            return NULL;
    dispatch_t *self = (dispatch_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = dispatch_call;
    self->stock = Py_NewRef(stock);
    self->rows = Py_NewRef(rows);
    self->messages = messages;
    return (PyObject *)self;
}

static int
dispatch_traverse(PyObject *object, visitproc visit, void *arg)
{
    dispatch_t *self = (dispatch_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->stock);
    Py_VISIT(self->rows);
    Py_VISIT(self->dict);
    return 0;
}

static int
dispatch_clear(PyObject *object)
{
    dispatch_t *self = (dispatch_t *)object;
    Py_CLEAR(self->stock);
    Py_CLEAR(self->rows);
    Py_CLEAR(self->dict);
    return 0;
}

static void
dispatch_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dispatch_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

// Binds the method if it is looked up on an object.
static PyObject *
dispatch_get(PyObject *object, PyObject *owner, PyObject *Py_UNUSED(type))
{
    return owner == NULL || owner == Py_None ? Py_NewRef(object)
                                             : PyMethod_New(object, owner);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(dispatch_t, vectorcall),
     READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(dispatch_t, dict), READONLY, NULL},
    {0},
};

static PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

PyDoc_STRVAR(
    dispatch_doc,
    "_Dispatch(method, rows, messages, /)\n--\n\n"
    "A method of communicators that calls mpi4py's method, or ours.\n\n"
    "rows: a tuple of (mpi4py's type, our type, our method). None as the\n"
    "method: mpi4py's method serves. If the communicator's handle is\n"
    "attached, the first row whose mpi4py type fits chooses the method.\n"
    "messages: mpi4py's method serves host memory if\n"
    "WARPMPI_HOST_MESSAGES=mpi.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)dispatch_doc}, {Py_tp_new, dispatch_new},
    {Py_tp_call, PyVectorcall_Call},   {Py_tp_traverse, dispatch_traverse},
    {Py_tp_clear, dispatch_clear},     {Py_tp_dealloc, dispatch_dealloc},
    {Py_tp_descr_get, dispatch_get},   {Py_tp_members, members},
    {Py_tp_getset, attributes},        {0},
};

PyType_Spec wm_py_dispatch_spec = {
    .name = "warpmpi._core._Dispatch",
    .basicsize = sizeof(dispatch_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC
             | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = slots,
};

PyDoc_STRVAR(
    is_attached_doc,
    "_is_attached(comm, /)\n--\n\n"
    "Return True if the calls on the handle of a communicator of any\n"
    "kind are made by warpmpi, and not by MPI alone. Local.");

static PyObject *
is_attached(PyObject *Py_UNUSED(module), PyObject *object)
{
    MPI_Comm handle;
    if (wm_py_mpi_comm(object, "comm", &handle) < 0)
        return NULL;
    return PyBool_FromLong(!wm_comm_is_mpis(handle));
}

PyMethodDef wm_py_dispatch_functions[] = {
    {"_is_attached", is_attached, METH_O, is_attached_doc},
    {0},
};
