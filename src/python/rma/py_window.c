// SPDX-License-Identifier: BSD-3-Clause
#include "python/rma/py_window.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "comm/diagnostics/hang.h"
#include "comm/rma/window_attach.h"
#include "comm/rma/window_run.h"
#include "comm/rma/window_sync.h"
#include "python/request/py_request.h"
#include "python/view/view.h"
#include "python/view/view_parts.h"

#define MOST_WORDS 16 // of a call, its window included
#define MOST_CALLS 64 // of a window

wm_window_t *
wm_py_window_of(const wm_py_window_t *self)
{
    return wm_py_check_running() < 0 ? NULL : self->window;
}

wm_window_t *
wm_py_window_on(PyObject *self, PyObject *bound, const char *call,
                const wm_on_stream_t **on)
{
    wm_window_t *window = wm_py_window_of((wm_py_window_t *)self);
    *on = (const wm_on_stream_t *)bound;
    if (PyErr_Occurred())
        return NULL;
    if (!Py_IS_TYPE(bound, wm_py_state->on_stream_type))
        PyErr_Format(PyExc_TypeError, "%s: on is %R, no StreamComm", call,
                     bound);
    else if (window == NULL)
        PyErr_Format(PyExc_RuntimeError,
                     "%s on a stream: the window was freed", call);
    return PyErr_Occurred() ? NULL : window;
}

int
wm_py_window_rank(const wm_window_t *window, PyObject *value, const char *call,
                  int *rank)
{
    if (wm_py_argument_int(value, "target_rank", rank) < 0)
        return -1;
    if (*rank == MPI_PROC_NULL)
        return 1;
    if (*rank >= 0 && *rank < window->size)
        return 0;
    return wm_py_mpi_fail(MPI_ERR_RANK,
                          "%s: rank %d is not a rank of this window: use 0 to "
                          "%d",
                          call, *rank, window->size - 1);
}

// Calls of MPI's own windows (warpmpi/_windows.py), which live as long as the
// process, by the address of their name. With the GIL.
static struct {
    const char *name;
    PyObject *method;
} beneath[MOST_CALLS];
static int beneath_count;

// Returns such a call, borrowed; NULL with an exception.
static PyObject *
find_beneath(const char *name)
{
    for (int i = 0; i < beneath_count; ++i)
        if (beneath[i].name == name)
            return beneath[i].method;
    PyObject *calls = PyDict_GetItemString(wm_py_state->window_type->tp_dict,
                                           "_beneath");
    PyObject *found = calls != NULL ? PyDict_GetItemString(calls, name) : NULL;
    if (found == NULL)
        PyErr_Format(PyExc_NotImplementedError,
                     "Win.%s: mpi4py has no such call", name);
    else if (beneath_count < MOST_CALLS) {
        beneath[beneath_count].name = name;
        beneath[beneath_count++].method = found;
    }
    return found;
}

PyObject *
wm_py_window_beneath(PyObject *self, const char *call, PyObject *const *args,
                     Py_ssize_t given, PyObject *keywords)
{
    PyObject *words[MOST_WORDS], *method = find_beneath(call);
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;
    if (method == NULL)
        return NULL;
    if (given + named >= MOST_WORDS)
        return PyErr_Format(PyExc_TypeError, "Win.%s: too many arguments",
                            call);
    words[0] = self;
    memcpy(words + 1, args, (size_t)(given + named) * sizeof *words);
    return PyObject_Vectorcall(method, words, (size_t)given + 1, keywords);
}

PyObject *
wm_py_window_fail(PyObject *self)
{
    MPI_Win win = ((wm_py_window_t *)self)->base.ob_mpi;
    MPI_Errhandler handler;
    int code;
    if (win == MPI_WIN_NULL
        || !PyErr_ExceptionMatches(wm_py_state->mpi_exception))
        return NULL;
    PyObject *error = PyErr_GetRaisedException();
    if (wm_py_check_running() == 0
        && MPI_Win_get_errhandler(win, &handler) == MPI_SUCCESS
        && wm_py_mpi_handler_hears(&handler, error, &code))
        WM_PY_UNLOCKED(MPI_Win_call_errhandler(win, code));
    PyErr_SetRaisedException(error);
    return NULL;
}

// --- opening and closing --------------------------------------------------

PyDoc_STRVAR(
    window_open_doc,
    "_open($self, comm, memory, disp_unit, made, /)\n--\n\n"
    "Open the window over a communicator of its own. Collective.\n\n"
    "memory: a contiguous GPU array, an MPI.memory of the host, or None.\n"
    "made: the name of the call that makes the window.");

// Fills what this rank gives: GPU memory, or a buffer of the host; None: no
// memory. The view, or the buffer, keeps the memory.
static int
window_read(PyObject *memory, wm_window_given_t *given, wm_view_t *view,
            bool *viewed, Py_buffer *raw)
{
    wm_error_t err;
    if (memory == Py_None)
        return 0;
    if ((PyObject *)Py_TYPE(memory) == wm_py_state->mpi_memory) {
        if (PyObject_GetBuffer(memory, raw, PyBUF_WRITABLE) < 0)
            return -1;
        given->data = raw->buf;
        given->nbytes = (size_t)raw->len;
        return wm_py_result(
            wm_pointer_describe(raw->buf, &given->memory, &err), &err);
    }
    if (wm_py_view_parse(memory, true, "memory", view) < 0)
        return -1;
    *viewed = true;
    if (!wm_array_is_contiguous(&view->array))
        return wm_py_fail(PyExc_ValueError,
                          "memory: a window is contiguous memory: give a "
                          "contiguous array");
    given->on_device = true;
    given->data = view->array.data;
    given->nbytes = wm_array_nbytes(&view->array);
    given->memory = view->memory;
    if (given->nbytes == 0 || wm_memory_on_device(&view->memory))
        return 0;
    given->on_device = false;
    return wm_py_fail(PyExc_RuntimeError,
                      "memory: the array has told other memory before");
}

static PyObject *
window_open(PyObject *object, PyObject *args)
{
    wm_py_window_t *self = (wm_py_window_t *)object;
    PyObject *comm, *memory, *made;
    long long unit;
    wm_channel_t channel;
    wm_view_t view;
    wm_error_t err, told;
    bool viewed = false;
    int code;
    if (!PyArg_ParseTuple(args, "OOLU:_open", &comm, &memory, &unit, &made)
        || wm_py_channel_get(comm, &channel) < 0)
        return NULL;
    wm_window_given_t given = {
        .unit = unit,
        .interrupted = wm_py_interrupted,
        .dynamic = PyUnicode_CompareWithASCIIString(made, "Create_dynamic")
                   == 0,
    };
    PyObject *raised = NULL;
    if (window_read(memory, &given, &view, &viewed, &self->raw) < 0) {
        given.code = wm_py_describe(WM_ERR_VALUE, &told);
        given.text = told.text;
        given.on_device = false;
        raised = PyErr_GetRaisedException();
    }
    WM_PY_UNLOCKED(
        code = wm_window_open(channel.comm, &given, &self->window, &err));
    if (viewed)
        wm_py_view_release(&view);
    if (raised != NULL) {
        PyErr_SetRaisedException(raised);
        return NULL;
    }
    if (code < 0)
        return wm_py_raise(&err);
    Py_XSETREF(self->comm, Py_NewRef(comm));
    Py_XSETREF(self->memory, memory != Py_None ? Py_NewRef(memory) : NULL);
    Py_XSETREF(self->made, Py_NewRef(made));
    self->data = given.data;
    if (given.dynamic)
        Py_XSETREF(self->attached, PyDict_New());
    return given.dynamic && self->attached == NULL ? NULL : Py_NewRef(Py_None);
}

static int
window_close(wm_py_window_t *self, wm_error_t *err)
{
    wm_window_t *window = self->window;
    int code;
    self->window = NULL;
    PyObject *kept = self->attached != NULL ? self->attached : self->memory;
    if (self->detached != NULL
        && PyDict_SetItem(kept, Py_None, self->detached) < 0)
        PyErr_Clear();
    Py_XINCREF(kept);
    WM_PY_UNLOCKED(
        code = wm_window_close(window, kept, wm_py_release_object, err));
    if (self->raw.obj != NULL)
        PyBuffer_Release(&self->raw);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->comm);
    Py_CLEAR(self->made);
    Py_CLEAR(self->attached);
    Py_CLEAR(self->detached);
    return code;
}

PyDoc_STRVAR(window_end_doc,
             "_end($self, /)\n--\n\n"
             "Check that no epoch is open, and close the window. Collective;\n"
             "returns its communicator, or None if it was not open.");

static PyObject *
window_end(PyObject *object, PyObject *Py_UNUSED(unused))
{
    wm_py_window_t *self = (wm_py_window_t *)object;
    wm_window_t *window = self->window;
    wm_error_t err;
    int code;
    if (wm_py_check_running() < 0)
        return NULL;
    if (window == NULL)
        Py_RETURN_NONE;
    wm_hang_call("Win.Free", true);
    WM_PY_UNLOCKED({
        wm_lock(&window->lock);
        code = wm_window_end(window, &err);
        pthread_mutex_unlock(&window->lock);
    });
    wm_waiting_call.name = NULL;
    if (code < 0)
        return wm_py_raise(&err);
    PyObject *comm = Py_NewRef(self->comm);
    code = window_close(self, &err);
    if (code == 0)
        return comm;
    Py_DECREF(comm);
    return wm_py_raise(&err);
}

// Keeps an array that was detached.
static int
window_keep(wm_py_window_t *self, PyObject *array)
{
    if (self->detached == NULL && array != NULL)
        self->detached = PyList_New(0);
    return array == NULL            ? 0
           : self->detached == NULL ? -1
                                    : PyList_Append(self->detached, array);
}

PyDoc_STRVAR(window_attach_doc,
             "_attach($self, memory, attaches, /)\n--\n\n"
             "Attach a GPU array to a dynamic window, or detach it.");

static PyObject *
window_attach(PyObject *object, PyObject *args)
{
    wm_py_window_t *self = (wm_py_window_t *)object;
    PyObject *memory;
    wm_error_t err;
    wm_view_t view;
    wm_window_given_t given = {0};
    Py_buffer raw = {.obj = NULL};
    bool viewed = false;
    int attaches, code;
    if (!PyArg_ParseTuple(args, "Op:_attach", &memory, &attaches))
        return NULL;
    if (self->window == NULL || self->attached == NULL) {
        wm_py_mpi_fail(MPI_ERR_RMA_FLAVOR,
                       "this window takes no more memory: make it by "
                       "Create_dynamic");
        return NULL;
    }
    if (window_read(memory, &given, &view, &viewed, &raw) == 0) {
        if (attaches)
            WM_PY_UNLOCKED(code = wm_window_attach(self->window, given.data,
                                                   given.nbytes, &given.memory,
                                                   &err));
        else
            WM_PY_UNLOCKED(
                code = wm_window_detach(self->window, given.data, &err));
    }
    else
        err.code = code = WM_ERR_PYTHON;
    if (viewed)
        wm_py_view_release(&view);
    if (raw.obj != NULL)
        PyBuffer_Release(&raw);
    PyObject *key = code == 0 ? PyLong_FromVoidPtr(given.data)
                              : wm_py_raise(&err);
    if (key == NULL)
        return NULL;
    if (!wm_window_has_graphs(self->window))
        Py_CLEAR(self->detached);
    else if (!attaches)
        code = window_keep(self, PyDict_GetItem(self->attached, key));
    if (code == 0)
        code = attaches ? PyDict_SetItem(self->attached, key, memory)
                        : PyDict_DelItem(self->attached, key);
    Py_DECREF(key);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(window_part_doc,
             "_part($self, rank, /)\n--\n\n"
             "Return (address in this process or 0, bytes, bytes of a\n"
             "displacement, True for GPU memory) of a rank's part; None if\n"
             "the window is MPI's alone.");

static PyObject *
window_part(PyObject *object, PyObject *value)
{
    wm_py_window_t *self = (wm_py_window_t *)object;
    int rank;
    if (self->window == NULL)
        Py_RETURN_NONE;
    int code = wm_py_window_rank(self->window, value, "Shared_query", &rank);
    if (code != 0)
        return code < 0 ? NULL : Py_NewRef(Py_None);
    const wm_window_part_t *part = &self->window->parts[rank];
    const char *memory = rank == self->window->comm->rank ? self->data
                                                          : part->memory;
    return Py_BuildValue("KKLO", (unsigned long long)(uintptr_t)memory,
                         (unsigned long long)part->nbytes,
                         (long long)part->unit,
                         part->on_device ? Py_True : Py_False);
}

// --- the type -------------------------------------------------------------

// A window of ours has one object: the handle of MPI, which mpi4py copies, is
// that of a window without memory.
static PyObject *
window_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *given = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0)
                                                  : NULL;
    bool ours = given != NULL
                && PyObject_TypeCheck(given, wm_py_state->window_type)
                && ((wm_py_window_t *)given)->window != NULL;
    if (!ours)
        return wm_py_mpi_win_type()->tp_new(type, args, keywords);
    if (Py_TYPE(given) == type)
        return Py_NewRef(given);
    return PyErr_Format(PyExc_TypeError,
                        "win: a window over GPU memory stays a %s: make it "
                        "by %s.Create",
                        Py_TYPE(given)->tp_name, type->tp_name);
}

static int
window_traverse(PyObject *object, visitproc visit, void *arg)
{
    wm_py_window_t *self = (wm_py_window_t *)object;
    Py_VISIT(self->comm);
    Py_VISIT(self->memory);
    Py_VISIT(self->attached);
    Py_VISIT(self->detached);
    return wm_py_mpi_traverse(wm_py_mpi_win_type(), object, visit, arg);
}

static int
window_clear(PyObject *object)
{
    // A window that was not freed stays: other ranks may access it.
    return wm_py_mpi_clear(wm_py_mpi_win_type(), object);
}

// NULL is None.
static PyMemberDef window_members[] = {
    {"_comm", T_OBJECT, offsetof(wm_py_window_t, comm), READONLY,
     "Its communicator, or None."},
    {"_made", T_OBJECT, offsetof(wm_py_window_t, made), READONLY,
     "The call that made it, or None."},
    {"_memory", T_OBJECT, offsetof(wm_py_window_t, memory), READONLY,
     "The GPU array of this rank."},
    {0},
};

#define X(name) WM_PY_FASTCALL(#name, wm_py_window_##name),
static PyMethodDef window_methods[] = {
    WM_PY_WINDOW_CALLS(X) // the calls of MPI
    {"_open", window_open, METH_VARARGS, window_open_doc},
    {"_end", window_end, METH_NOARGS, window_end_doc},
    {"_attach", window_attach, METH_VARARGS, window_attach_doc},
    {"_part", window_part, METH_O, window_part_doc},
    WM_PY_ROW("_on_call", wm_py_window_on_call, METH_FASTCALL),
    WM_PY_ROW("_on_sync", wm_py_window_on_sync, METH_VARARGS),
    {0},
};
#undef X

PyDoc_STRVAR(
    window_doc,
    "Win(win=None)\n--\n\n"
    "A window of MPI whose memory may be GPU memory.\n\n"
    "Made by Create, Allocate, Allocate_shared or Create_dynamic. It has the\n"
    "calls of MPI.Win, which take arrays in any memory, of any library; on()\n"
    "gives its calls on a stream. A window of host memory is MPI's own.");

static PyType_Slot window_slots[] = {
    {Py_tp_doc, (void *)window_doc},
    {Py_tp_traverse, window_traverse},
    {Py_tp_clear, window_clear},
    {Py_tp_methods, window_methods},
    {Py_tp_members, window_members},
    {Py_tp_new, window_new},
    {0},
};

PyType_Spec wm_py_window_spec = {
    .name = "warpmpi.Win",
    .basicsize = sizeof(wm_py_window_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = window_slots,
};
