// SPDX-License-Identifier: BSD-3-Clause
#include "python/request/stock.h"

#include "python/core/arguments.h"
#include "python/request/handles.h"
#include "python/request/prequest.h"

static void
stock_settle_one(PyObject *object, PyObject *other)
{
    PyMPIRequestObject *given = (PyMPIRequestObject *)object;
    if (object == other || wm_py_handles_is_live((wm_request_t *)other))
        return;
    PyObject *buffer = given->ob_buf;
    given->ob_mpi = MPI_REQUEST_NULL;
    given->ob_buf = Py_NewRef(Py_None);
    Py_XDECREF(buffer);
}

PyObject *
wm_py_stock_forward(PyObject *object, PyObject *other, const char *name,
                    PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *method = PyObject_GetAttrString(other, name);
    PyObject *result = method != NULL ? PyObject_Vectorcall(
                           method, args, (size_t)given, names)
                                      : NULL;
    Py_XDECREF(method);
    if (PyObject_TypeCheck(other, wm_py_state->request_type))
        stock_settle_one(object, other);
    Py_DECREF(other);
    return result;
}

PyObject *
wm_py_stock_resolve(PyObject *given)
{
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    PyObject *resolved = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count && resolved != NULL; ++i) {
        PyObject *item = PyTuple_GET_ITEM(given, i), *other = NULL;
        if (PyObject_TypeCheck(item, wm_py_mpi_request_type()))
            other = wm_py_handles_find(item);
        if (other != NULL && wm_py_prequest_notice((wm_request_t *)other) < 0)
            Py_CLEAR(resolved);
        if (resolved != NULL)
            PyTuple_SET_ITEM(resolved, i,
                             other != NULL ? other : Py_NewRef(item));
        else
            Py_XDECREF(other);
    }
    return resolved;
}

void
wm_py_stock_settle(PyObject *given, PyObject *resolved)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
        stock_settle_one(PyTuple_GET_ITEM(given, i),
                         PyTuple_GET_ITEM(resolved, i));
}

// The methods of mpi4py's types that may be called with a handle of ours.
#define STOCK(X)                                                              \
    X(request, Wait)                                                          \
    X(request, Test)                                                          \
    X(request, Get_status)                                                    \
    X(request, Cancel)                                                        \
    X(request, Free)                                                          \
    X(request, wait)                                                          \
    X(request, test)                                                          \
    X(request, get_status)                                                    \
    X(request, cancel)                                                        \
    X(prequest, Start)                                                        \
    X(prequest, Pready)                                                       \
    X(prequest, Pready_range)                                                 \
    X(prequest, Pready_list)                                                  \
    X(prequest, Parrived)                                                     \
    X(message, Recv)                                                          \
    X(message, Irecv)                                                         \
    X(message, recv)                                                          \
    X(message, irecv)

typedef struct {
    const char *name;
    PyTypeObject *(*type)(void);
    PyObject *own; // mpi4py's method, borrowed from its kept type
} stock_t;

enum {
#define X(type, name) STOCK_##name,
    STOCK(X)
#undef X
};

static stock_t stock[] = {
#define X(of, name) [STOCK_##name] = {#name, wm_py_mpi_##of##_type, NULL},
    STOCK(X)
#undef X
};

// Returns our matched message behind a mpi4py object, a new reference. Returns
// NULL if there is none; with an exception for a null message, for which Open
// MPI ends the job.
static PyObject *
stock_find_message(PyObject *object)
{
    PyObject *holder = wm_py_handles_message(object);
    if (holder != NULL)
        return Py_NewRef(holder);
    if (PyObject_TypeCheck(object, wm_py_state->matched_type))
        return Py_NewRef(object);
    if (((PyMPIMessageObject *)object)->ob_mpi != MPI_MESSAGE_NULL)
        return NULL;
    wm_py_mpi_fail(MPI_ERR_REQUEST,
                   "the message has been received already, or was never "
                   "matched: take one from Mprobe or Improbe");
    return NULL;
}

static PyObject *
stock_find(const stock_t *method, PyObject *object)
{
    return method->type() == wm_py_mpi_message_type()
               ? stock_find_message(object)
               : wm_py_handles_find(object);
}

static PyObject *
stock_call(const stock_t *method, PyObject *object, PyObject *const *args,
           Py_ssize_t given, PyObject *names)
{
    PyObject *other = stock_find(method, object);
    if (other != NULL)
        return wm_py_stock_forward(object, other, method->name, args, given,
                                   names);
    return PyErr_Occurred()
               ? NULL
               : wm_py_call_with(method->own, object, args, given, names);
}

#define X(type, name)                                                         \
    static PyObject *stock_##name(PyObject *object, PyObject *const *args,    \
                                  Py_ssize_t given, PyObject *names)          \
    {                                                                         \
        return stock_call(&stock[STOCK_##name], object, args, given, names);  \
    }
STOCK(X)
#undef X

static PyMethodDef stock_methods[] = {
#define X(type, name)                                                         \
    [STOCK_##name] = {#name, (PyCFunction)(void (*)(void))stock_##name,       \
                      METH_FASTCALL | METH_KEYWORDS, NULL},
    STOCK(X)
#undef X
};

// Replaces a method of mpi4py, with mpi4py's docstring, which lives as long.
static int
stock_replace(stock_t *method, PyMethodDef *definition)
{
    PyTypeObject *type = method->type();
    PyObject *own = PyDict_GetItemString(type->tp_dict, method->name);
    if (own == NULL || method->own != NULL)
        return 0; // an older mpi4py without the method
    PyObject *text = PyObject_GetAttrString(own, "__doc__");
    if (text != NULL && PyUnicode_Check(text))
        definition->ml_doc = PyUnicode_AsUTF8(text);
    Py_XDECREF(text); // the method holds it as well
    PyErr_Clear();
    method->own = own;
    Py_INCREF(own); // replaces the dictionary's reference
    PyObject *ours = PyDescr_NewMethod(type, definition);
    int code = ours == NULL
                   ? -1
                   : PyDict_SetItemString(type->tp_dict, method->name, ours);
    Py_XDECREF(ours);
    PyType_Modified(type);
    return code;
}

PyDoc_STRVAR(
    guard_doc,
    "_guard_requests()\n--\n\n"
    "Make mpi4py's own methods of requests find warpmpi's requests by\n"
    "their handles.");

static PyObject *
guard(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    for (size_t i = 0; i < sizeof stock / sizeof *stock; ++i)
        if (stock_replace(&stock[i], &stock_methods[i]) < 0)
            return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    watch_doc,
    "_watch_copies()\n--\n\n"
    "Make copies of a request act as the original does. Called once.");

static PyObject *
watch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return wm_py_handles_watch_copies() < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(
    show_doc,
    "_show_handle(object, /)\n--\n\n"
    "The program is about to get the handle of what may be a request.");

static PyObject *
show(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (PyObject_TypeCheck(object, wm_py_state->request_type)
        && wm_py_handles_show((wm_request_t *)object) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef wm_py_stock_functions[] = {
    {"_guard_requests", guard, METH_NOARGS, guard_doc},
    {"_watch_copies", watch, METH_NOARGS, watch_doc},
    {"_show_handle", show, METH_O, show_doc},
    {0},
};
