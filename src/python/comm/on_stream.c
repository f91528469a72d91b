// SPDX-License-Identifier: BSD-3-Clause
// Messages and collectives of a communicator bound to a stream:
// comm.on(stream).
#include "python/comm/calls.h"

#include "python/comm/direct_call.h"
#include "python/device/py_stream.h"
#include "python/message/channel.h"

PyObject *
wm_py_on_stream(PyObject *comm, PyObject *stream)
{
    wm_on_stream_t *bound = PyObject_GC_New(wm_on_stream_t,
                                            wm_py_state->on_stream_type);
    if (bound == NULL)
        return NULL;
    bound->comm = Py_NewRef(comm);
    bound->stream_object = Py_NewRef(stream);
    int code = wm_py_stream_from_object(stream, "stream", &bound->device,
                                        &bound->stream);
    if (code == 0 && bound->stream == CU_STREAM_PER_THREAD)
        code = wm_py_fail(
            PyExc_ValueError,
            "stream: the per-thread default stream is another one on each "
            "thread, and any thread may serve a message; use a stream of its "
            "own, such as wm.Stream(), or the legacy default stream");
    if (code < 0)
        Py_CLEAR(bound);
    else
        PyObject_GC_Track(bound);
    return (PyObject *)bound;
}

static void
on_stream_dealloc(PyObject *object)
{
    wm_on_stream_t *self = (wm_on_stream_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->stream_object);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// There is no clear slot: as with a tuple, another object of a cycle is
// cleared.
static int
on_stream_traverse(PyObject *object, visitproc visit, void *arg)
{
    wm_on_stream_t *self = (wm_on_stream_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->comm);
    Py_VISIT(self->stream_object);
    return 0;
}

#define METHOD(name, KIND, begins, LIST, returns)                             \
    PyDoc_STRVAR(                                                             \
        name##_doc, #name "($self, /" WM_TEXT_##LIST                          \
        ")\n--\n\n"                                                           \
        "mpi4py's " #name " on the stream, which waits for the streams of\n"  \
        "the other ranks. Its arrays are contiguous GPU arrays; the\n"        \
        "datatypes of w-forms may have gaps. " returns                        \
        "Raises TypeError, ValueError, BufferError, wm.CudaError,\n"          \
        "MPI.Exception, and RuntimeError if an earlier collective on a\n"     \
        "stream failed on another rank.");                                    \
    static PyObject *name(PyObject *self, PyObject *const *args,              \
                          Py_ssize_t given, PyObject *keywords)               \
    {                                                                         \
        PyObject *result = wm_py_direct_on_stream(                            \
            WM_COLL_##KIND, begins, self, args, given, keywords);             \
        return result != NULL ? result : wm_py_channel_fail(self, false);     \
    }
#define X(KIND, name, iname, LIST, ...)                                       \
    METHOD(name, KIND, false, LIST,                                           \
           "Returns at once, except\nthe first time.\n")                      \
    METHOD(iname, KIND, true, LIST,                                           \
           "Returns at once,\nexcept the first time, a wm.Request, "          \
           "which keeps the arrays and\nends when the stream has passed "     \
           "the call.\n")
WM_COLLECTIVES(X)
#undef X

#define X(KIND, name, iname, ...)                                             \
    WM_PY_FASTCALL(#name, name), WM_PY_FASTCALL(#iname, iname),
static PyMethodDef methods[] = {WM_PY_MESSAGE_CALLS(WM_PY_CALL_ROW)
                                    WM_COLLECTIVES(X){0}};
#undef X

static PyObject *
on_stream_repr(PyObject *object)
{
    const wm_on_stream_t *self = (const wm_on_stream_t *)object;
    return PyUnicode_FromFormat("<warpmpi.StreamComm of %R on cuda:%d, stream "
                                "%p>",
                                self->comm, self->device,
                                (void *)self->stream);
}

PyDoc_STRVAR(on_stream_doc,
             "Messages and collectives of a communicator, ordered on one\n"
             "stream.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)on_stream_doc}, {Py_tp_repr, on_stream_repr},
    {Py_tp_dealloc, on_stream_dealloc}, {Py_tp_traverse, on_stream_traverse},
    {Py_tp_methods, methods},           {0},
};

PyType_Spec wm_py_on_stream_spec = {
    .name = "warpmpi.StreamComm",
    .basicsize = sizeof(wm_on_stream_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
