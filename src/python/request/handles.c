// SPDX-License-Identifier: BSD-3-Clause
#include "python/request/handles.h"

#include <string.h>

#include "comm/engine/engine.h"
#include "python/request/prequest.h"

#define BUCKETS 256

static wm_request_t *buckets[BUCKETS];
static size_t count, adopted_count, sweep_at = 64;

static wm_request_t **
handles_bucket(MPI_Request key)
{
    uint64_t bits = 0;
    memcpy(&bits, &key, sizeof key);
    return &buckets[bits * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

static bool
is_persistent(const wm_request_t *self)
{
    return PyObject_TypeCheck((PyObject *)self, wm_py_state->prequest_type);
}

bool
wm_py_handles_is_live(const wm_request_t *self)
{
    return is_persistent(self)
               ? wm_py_prequest_is_live((const wm_prequest_t *)self)
               : wm_py_request_is_active(self);
}

// Takes a request out of the table. Returns false if it was never inserted, as
// its operation had ended.
static bool
handles_take_out(wm_request_t *self)
{
    wm_request_t **link = handles_bucket(self->key);
    while (*link != NULL && *link != self)
        link = &(*link)->next;
    if (*link == NULL)
        return false;
    *link = self->next;
    --count;
    return true;
}

void
wm_py_handles_remove(wm_request_t *self)
{
    if (!self->known)
        return;
    self->known = false;
    if (!handles_take_out(self) || !self->adopted)
        return;
    self->adopted = false;
    --adopted_count;
    Py_DECREF(self);
}

// Removes requests that C has waited for and that have no object. To end a
// request may run Python code, which may change the table.
static void
handles_sweep(void)
{
    if (adopted_count < sweep_at)
        return;
    for (size_t i = 0; i < BUCKETS; ++i)
        for (wm_request_t *each = buckets[i]; each != NULL;) {
            bool over = each->adopted && !wm_py_handles_is_live(each);
            if (over)
                wm_py_handles_remove(each);
            each = over ? buckets[i] : each->next;
        }
    sweep_at = 2 * adopted_count + 64;
}

static wm_request_t *
handles_look_up(MPI_Request key)
{
    wm_request_t *each = *handles_bucket(key);
    while (each != NULL && (each->key != key || !wm_py_handles_is_live(each)))
        each = each->next;
    return each;
}

PyObject *
wm_py_handles_find(PyObject *object)
{
    wm_request_t *self = (wm_request_t *)object;
    MPI_Request key = self->base.ob_mpi;
    if (PyObject_TypeCheck(object, wm_py_state->request_type)
        && (self->op != NULL || wm_py_handles_is_live(self)))
        return Py_NewRef(object);
    return count == 0 || key == MPI_REQUEST_NULL
               ? NULL
               : Py_XNewRef((PyObject *)handles_look_up(key));
}

static void
handles_insert(wm_request_t *self)
{
    wm_request_t **bucket = handles_bucket(self->key);
    self->next = *bucket;
    *bucket = self;
    ++count;
}

static void
handles_started(void)
{
    if (!Py_IsInitialized()) // the process ends
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    if (wm_py_handles_begin_started() < 0)
        PyErr_WriteUnraisable(NULL);
    PyGILState_Release(state);
}

// Makes its handle a persistent request of MPI's, active if the request is.
static int
handles_show_persistent(wm_request_t *self)
{
    wm_handle_t *handle;
    wm_error_t err;
    int code;
    WM_PY_UNLOCKED(code = wm_handle_new(&self->base.ob_mpi, &handle, &err));
    if (wm_py_result(code, &err) < 0)
        return -1;
    if (self->handle != NULL) { // another thread was first
        WM_PY_UNLOCKED(wm_handle_free(handle));
        return 0;
    }
    MPI_Request former = wm_py_request_is_active(self) ? self->base.ob_mpi
                                                       : MPI_REQUEST_NULL;
    self->handle = handle;
    self->key = self->base.ob_mpi = wm_handle_request(handle);
    self->known = true;
    handles_insert(self);
    if (former != MPI_REQUEST_NULL) {
        wm_op_t *op = self->op;
        WM_PY_UNLOCKED(code = wm_handle_begin(handle, op, &err));
        wm_py_request_free(former);
    }
    wm_handle_watch(handles_started);
    return wm_py_result(code, &err);
}

int
wm_py_handles_show(wm_request_t *self)
{
    handles_sweep(); // first: may run Python code
    if (self->known || wm_engine_check(NULL) < 0
        || !wm_py_handles_is_live(self))
        return 0;
    if (is_persistent(self))
        return handles_show_persistent(self);
    self->known = true;
    self->key = self->base.ob_mpi;
    // An MPI handle that has ended may be shared by many requests.
    if (!wm_op_is_ended(self->op))
        handles_insert(self);
    return 0;
}

// Returns our type that an object is of, or derived from.
static PyTypeObject *
handles_type_of(PyObject *object)
{
    PyTypeObject *const types[] = {
        wm_py_state->request_type,
        wm_py_state->prequest_type,
        wm_py_state->partitioned_type,
        wm_py_state->persistent_coll_type,
    };
    for (PyTypeObject *type = Py_TYPE(object); type != NULL;
         type = type->tp_base)
        for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
            if (type == types[i])
                return type;
    return NULL;
}

void
wm_py_handles_adopt(PyObject *object)
{
    wm_request_t *self = (wm_request_t *)object;
    bool there = self->known && handles_look_up(self->key) == self; // and live
    if (!there || wm_engine_check(NULL) < 0) {
        wm_py_handles_remove(self);
        return;
    }
    // The table does not find the old object: to make its heir may run Python
    // code.
    (void)handles_take_out(self);
    PyObject *raised = PyErr_GetRaisedException();
    // A finalizer that keeps the object would be shorter, but programs free
    // requests by weak references, which must see the object go.
    PyTypeObject *type = handles_type_of(object);
    PyObject *empty = PyTuple_New(0);
    PyObject *heir = empty != NULL ? type->tp_new(Py_TYPE(object), empty, NULL)
                                   : NULL;
    Py_XDECREF(empty);
    if (heir == NULL) { // out of memory: drop the handle
        PyErr_WriteUnraisable(NULL);
        self->known = false;
    }
    PyErr_SetRaisedException(raised);
    if (heir == NULL)
        return;
    // Moves all members but mpi4py's, which the deallocator needs.
    size_t from = sizeof self->base;
    size_t size = (size_t)type->tp_basicsize - from;
    wm_request_t *other = (wm_request_t *)heir;
    memcpy((char *)heir + from, (char *)object + from, size);
    memset((char *)object + from, 0, size);
    handles_insert(other);
    other->base.ob_mpi = self->base.ob_mpi;
    other->adopted = true;
    ++adopted_count;
    self->base.ob_mpi = self->lent = MPI_REQUEST_NULL;
    if (other->handle != NULL)
        WM_PY_UNLOCKED(wm_handle_move(other->handle, &other->base.ob_mpi));
    else if (other->payload == NULL)
        atomic_store(&other->op->orphaned, true);
}

// Lists persistent requests in the order of their creation, which usually is
// that of the program's starts: MPI tells only that a start was made.
static PyObject *
handles_persistent(void)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < BUCKETS && list != NULL; ++i)
        for (wm_request_t *each = buckets[i]; each != NULL; each = each->next)
            if (each->handle != NULL
                && PyList_Append(list, (PyObject *)each) < 0) {
                Py_CLEAR(list);
                break;
            }
    return list;
}

static int
handles_by_age(const void *one, const void *other)
{
    unsigned long a = (*(wm_prequest_t *const *)one)->number,
                  b = (*(wm_prequest_t *const *)other)->number;
    return (a > b) - (a < b);
}

int
wm_py_handles_begin_started(void)
{
    PyObject *first = NULL;
    PyObject *list = handles_persistent();
    if (list == NULL)
        return -1;
    PyObject **items = ((PyListObject *)list)->ob_item;
    size_t length = (size_t)PyList_GET_SIZE(list);
    if (length > 0)
        qsort(items, length, sizeof *items, handles_by_age);
    for (size_t i = 0; i < length; ++i) {
        if (wm_py_prequest_begin_started((wm_prequest_t *)items[i]) < 0
            && first == NULL)
            first = PyErr_GetRaisedException();
        PyErr_Clear();
    }
    Py_DECREF(list);
    PyErr_SetRaisedException(first);
    return first != NULL ? -1 : 0;
}

// Constructors of mpi4py's objects, which copy the handle.
enum { REQUEST, PREQUEST, GREQUEST, MESSAGE, COPIED };

static newfunc makers[COPIED];

// Returns the object that is copied, borrowed; NULL if there is none.
static PyObject *
handles_given(PyObject *args, PyObject *kwargs, const char *name)
{
    return PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0)
           : kwargs != NULL           ? PyDict_GetItemString(kwargs, name)
                                      : NULL;
}

static PyObject *
make_request(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int kind = PyType_IsSubtype(type, wm_py_mpi_prequest_type())   ? PREQUEST
               : PyType_IsSubtype(type, wm_py_mpi_grequest_type()) ? GREQUEST
                                                                   : REQUEST;
    PyObject *given = handles_given(args, kwargs, "request");
    if (given != NULL && PyObject_TypeCheck(given, wm_py_state->request_type)
        && wm_py_handles_show((wm_request_t *)given) < 0)
        return NULL;
    return makers[kind](type, args, kwargs);
}

PyObject *
wm_py_handles_message(PyObject *object)
{
    PyTypeObject *ours = wm_py_state->matched_type;
    if (!PyObject_TypeCheck(object, wm_py_mpi_message_type()))
        return NULL;
    PyMPIMessageObject *message = (PyMPIMessageObject *)object;
    if (message->ob_mpi != MPI_MESSAGE_NULL)
        return NULL;
    if (message->ob_buf != NULL && PyObject_TypeCheck(message->ob_buf, ours))
        return message->ob_buf;
    return PyObject_TypeCheck(object, ours) ? object : NULL;
}

// Copies a message object. A matched message of ours has no handle, so it is
// its own copy. A copy of a derived type keeps it where mpi4py's keeps its
// buffer.
static PyObject *
make_message(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *given = handles_given(args, kwargs, "message");
    PyObject *holder = given != NULL ? wm_py_handles_message(given) : NULL;
    if (holder != NULL
        && (type == wm_py_mpi_message_type()
            || type == wm_py_state->matched_type))
        return Py_NewRef(holder);
    PyObject *made = makers[MESSAGE](type, args, kwargs);
    if (made != NULL && holder != NULL) {
        PyMPIMessageObject *message = (PyMPIMessageObject *)made;
        PyObject *former = message->ob_buf;
        message->ob_buf = Py_NewRef(holder);
        Py_XDECREF(former);
    }
    return made;
}

// Replaces the constructor of a type and of its derived types, which have
// inherited it.
static int
handles_replace_maker(PyTypeObject *type, newfunc former, newfunc maker)
{
    if (type->tp_new != former)
        return 0;
    type->tp_new = maker;
    type->tp_vectorcall = NULL; // newer Cython's, which would go past tp_new
    PyObject *derived = PyObject_CallMethod((PyObject *)type, "__subclasses__",
                                            NULL);
    int code = derived != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; code == 0 && i < PyList_GET_SIZE(derived); ++i)
        code = handles_replace_maker(
            (PyTypeObject *)PyList_GET_ITEM(derived, i), former, maker);
    Py_XDECREF(derived);
    return code;
}

int
wm_py_handles_watch_copies(void)
{
    PyTypeObject *const types[COPIED] = {
        [REQUEST] = wm_py_mpi_request_type(),
        [PREQUEST] = wm_py_mpi_prequest_type(),
        [GREQUEST] = wm_py_mpi_grequest_type(),
        [MESSAGE] = wm_py_mpi_message_type(),
    };
    static const newfunc ours[COPIED] = {
        [REQUEST] = make_request,
        [PREQUEST] = make_request,
        [GREQUEST] = make_request,
        [MESSAGE] = make_message,
    };
    for (int i = 0; i < COPIED; ++i) {
        if (types[i]->tp_new == ours[i])
            continue; // a former import has failed
        makers[i] = types[i]->tp_new;
        if (handles_replace_maker(types[i], makers[i], ours[i]) < 0)
            return -1;
    }
    return 0;
}
