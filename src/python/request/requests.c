// SPDX-License-Identifier: BSD-3-Clause
#include "python/request/requests.h"

#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/request.h"
#include "comm/diagnostics/hang.h"
#include "python/request/captured_request.h"
#include "python/request/py_request.h"
#include "python/request/stock.h"

#define AT_ONCE 64 // requests waited for in one release of the GIL

static wm_op_t *
op_of(PyObject *item)
{
    return PyObject_TypeCheck(item, wm_py_state->request_type)
               ? ((wm_request_t *)item)->op
               : NULL;
}

// Waits for our requests, in one release of the GIL for AT_ONCE of them.
// Returns 0, or -1 with the exception that interrupted the wait. Errors of
// messages are raised later.
static int
wait_for_all(PyObject *list)
{
    wm_op_t *ops[AT_ONCE];
    Py_ssize_t count = PyTuple_GET_SIZE(list);
    for (Py_ssize_t next = 0; next < count;) {
        int taken = 0, code = 0;
        for (; next < count && taken < AT_ONCE; ++next) {
            wm_op_t *op = op_of(PyTuple_GET_ITEM(list, next));
            if (op == NULL || atomic_load(&op->done))
                continue;
            wm_op_retain(op); // another thread may end the request
            ops[taken++] = op;
        }
        Py_BEGIN_ALLOW_THREADS;
        for (int i = 0; i < taken; ++i) {
            if (code != WM_ERR_PYTHON)
                code = wm_py_wait_unlocked(ops[i], NULL, NULL);
            wm_op_release(ops[i]);
        }
        Py_END_ALLOW_THREADS;
        if (code == WM_ERR_PYTHON)
            return -1;
    }
    return 0;
}

static void
for_each(PyObject *list, void (*visit)(wm_request_t *request))
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); ++i) {
        PyObject *item = PyTuple_GET_ITEM(list, i);
        if (PyObject_TypeCheck(item, wm_py_state->request_type))
            visit((wm_request_t *)item);
    }
}

// Raises the first error of our requests that MPI has waited for.
static int
raise_errors(PyObject *list)
{
    PyObject *first = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); ++i) {
        PyObject *item = PyTuple_GET_ITEM(list, i);
        wm_op_t *op = op_of(item);
        if (op == NULL || !atomic_load(&op->done)
            || ((wm_request_t *)item)->base.ob_mpi != MPI_REQUEST_NULL)
            continue;
        wm_op_retain(op);
        int code = wm_py_wait(op, NULL);
        wm_op_release(op);
        if (code < 0 && first == NULL)
            first = PyErr_GetRaisedException();
        PyErr_Clear();
    }
    PyErr_SetRaisedException(first);
    return first != NULL ? -1 : 0;
}

// Retires the requests that MPI has waited for.
static void
forget_ended(wm_request_t *request)
{
    if (!wm_py_request_is_active(request))
        wm_py_request_forget(request);
}

// Calls mpi4py's own method, which frees the requests that it has waited for.
static PyObject *
call_stock(const char *name, PyObject *list, PyObject *other)
{
    for_each(list, wm_py_request_lend);
    bool before = wm_request_keep_errors(true);
    PyObject *result = wm_py_mpi_call(wm_py_mpi_request_type(), name, list,
                                      other);
    (void)wm_request_keep_errors(before);
    int code = result != NULL ? raise_errors(list) : 0;
    PyObject *raised = PyErr_GetRaisedException();
    for_each(list, wm_py_request_take_back);
    if (result != NULL)
        for_each(list, forget_ended);
    PyErr_SetRaisedException(raised);
    if (code < 0)
        Py_CLEAR(result);
    return result;
}

// Makes mpi4py's own call with the given arguments, when no request is ours.
static PyObject *
pass_on(const char *name, PyObject *args, PyObject *kwargs)
{
    if (wm_py_check_running() < 0)
        return NULL;
    PyObject *method = wm_py_mpi_attribute(wm_py_mpi_request_type(), name,
                                           NULL);
    PyObject *result = method != NULL ? PyObject_Call(method, args, kwargs)
                                      : NULL;
    Py_XDECREF(method);
    return result;
}

// Does Waitall, or waitall, whose result is a list of objects.
static PyObject *
wait_for_each(const char *name, PyObject *list, PyObject *statuses)
{
    PyObject *first = NULL; // error
    if (wm_py_captured_wait(list, true) < 0)
        return NULL;
    wm_hang_call(name, false);
    bool ended = wait_for_all(list) == 0; // false: interrupted
    bool ask_mpi = name[0] == 'w' || statuses != Py_None;
    wm_ended_t taken_over[AT_ONCE];
    int taken = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list) && ended; ++i) {
        PyObject *item = PyTuple_GET_ITEM(list, i);
        wm_op_t *op = op_of(item);
        if (op == NULL) {
            ask_mpi = true;
            continue;
        }
        if (taken == AT_ONCE) {
            wm_py_end_requests(taken_over, taken);
            taken = 0;
        }
        wm_op_retain(op);
        int code = wm_py_wait(op, NULL);
        ended = op->done;
        wm_op_release(op);
        if (ended && (code < 0 || statuses == Py_None))
            taken_over[taken++] = wm_py_request_take_ended(
                (wm_request_t *)item);
        // MPI also waits for all, and then raises the first error.
        if (code < 0 && first == NULL)
            first = PyErr_GetRaisedException();
        PyErr_Clear();
    }
    PyObject *result = NULL;
    if (first == NULL) // perhaps interrupted
        first = PyErr_GetRaisedException();
    wm_py_end_requests(taken_over, taken);
    if (ended) // our requests are freed, if MPI is not asked
        result = ask_mpi ? call_stock(name, list, statuses)
                         : Py_NewRef(Py_True);
    if (first != NULL) {
        Py_CLEAR(result);
        PyErr_SetRaisedException(first);
    }
    return result;
}

PyObject *
wm_py_requests_tuple(PyObject *requests)
{
    PyObject *list = PySequence_Tuple(requests);
    if (list == NULL && PyErr_ExceptionMatches(PyExc_TypeError)
        && Py_TYPE(requests)->tp_iter == NULL)
        PyErr_Format(PyExc_TypeError,
                     "requests: expected a list of requests, not %.100s",
                     Py_TYPE(requests)->tp_name);
    return list;
}

// Takes the requests of a mpi4py call as a tuple, since the caller's list may
// change meanwhile, and the other argument, or None.
static PyObject *
take_list(const char *name, const char *second, PyObject *args,
          PyObject *kwargs, PyObject **other)
{
    char format[32];
    char *names[] = {"requests", (char *)second, NULL};
    PyObject *requests;
    *other = Py_None;
    if (wm_py_check_running() < 0)
        return NULL;
    PyOS_snprintf(format, sizeof format, "O|O:%s", name);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &requests,
                                     other))
        return NULL;
    return wm_py_requests_tuple(requests);
}

static bool
any_of_ours(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); ++i)
        if (op_of(PyTuple_GET_ITEM(list, i)) != NULL)
            return true;
    return false;
}

// Returns a reference to our first operation that has not ended, or NULL.
static wm_op_t *
first_under_way(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); ++i) {
        wm_op_t *op = op_of(PyTuple_GET_ITEM(list, i));
        if (op != NULL && !atomic_load(&op->done)) {
            wm_op_retain(op); // another thread may end the request
            return op;
        }
    }
    return NULL;
}

// Tests by MPI's own call, after our messages were advanced once.
static PyObject *
look_at(const char *name, PyObject *list, PyObject *other)
{
    if (wm_py_captured_wait(list, false) < 0)
        return NULL;
    if (any_of_ours(list))
        WM_PY_UNLOCKED(wm_engine_look(NULL));
    return call_stock(name, list, other);
}

// Returns true if the result of an MPI test says that the wait is over.
static bool
is_over(PyObject *tested)
{
    PyObject *first = tested;
    if (PyTuple_Check(tested))
        first = PyTuple_GET_ITEM(tested, 0);
    if (PyLong_Check(first)) // (index, flag[, object])
        return PyObject_IsTrue(PyTuple_GET_ITEM(tested, 1)) != 0;
    // None: no request is active; or a list of indices
    return !PyList_Check(first) || PyList_GET_SIZE(first) > 0;
}

// Waits by repeated tests if some requests are ours, as a wait inside MPI
// advances none of our messages.
static PyObject *
wait_for_some(const char *wait, PyObject *list, PyObject *other)
{
    PyObject *result;
    wm_hang_t hang;
    char test[16]; // its call that tests
    if (wm_py_captured_wait(list, false) < 0)
        return NULL;
    if (!any_of_ours(list))
        return call_stock(wait, list, other);
    PyOS_snprintf(test, sizeof test, "%cest%s", wait[0] == 'W' ? 'T' : 't',
                  wait + strlen("Wait"));
    wm_hang_call(wait, false);
    for (unsigned turn = 1;; ++turn) {
        result = call_stock(test, list, other);
        if (result == NULL || is_over(result))
            break;
        Py_DECREF(result);
        wm_op_t *op = turn % 32 == 0 ? first_under_way(list) : NULL;
        Py_BEGIN_ALLOW_THREADS;
        wm_engine_turn(turn);
        if (turn == 32)
            wm_hang_begin(&hang.watcher, wm_engine_now());
        if (op != NULL) {
            wm_hang_look(&hang.watcher, op, wm_engine_now());
            wm_op_release(op);
        }
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0) {
            result = NULL;
            break;
        }
    }
    return result;
}

typedef PyObject *
call_t(const char *name, PyObject *list, PyObject *other);

// Makes a call on the list in which our requests replace mpi4py's objects that
// have their handles.
static PyObject *
with_ours(call_t *call, const char *name, PyObject *given, PyObject *other)
{
    PyObject *list = wm_py_stock_resolve(given);
    PyObject *result = list != NULL ? call(name, list, other) : NULL;
    if (list != NULL)
        wm_py_stock_settle(given, list);
    Py_XDECREF(list);
    return result;
}

PyObject *
wm_py_requests_objects(const char *name, PyObject *list, PyObject *other)
{
    if (wm_py_check_running() < 0)
        return NULL;
    call_t *call = strcmp(name, "waitall") == 0    ? wait_for_each
                   : strncmp(name, "wait", 4) == 0 ? wait_for_some
                                                   : look_at;
    return with_ours(call, name, list, other);
}

// Does Waitany, whose result is the index alone.
static PyObject *
wait_for_any(const char *name, PyObject *list, PyObject *status)
{
    PyObject *result = wait_for_some(name, list, status);
    if (result == NULL || !PyTuple_Check(result))
        return result;
    PyObject *index = Py_NewRef(PyTuple_GET_ITEM(result, 0));
    Py_DECREF(result);
    return index;
}

static PyObject *
call_on_list(const char *name, const char *second, call_t *call,
             PyObject *args, PyObject *kwargs)
{
    if (!wm_engine_is_started())
        return pass_on(name, args, kwargs);
    PyObject *other, *list = take_list(name, second, args, kwargs, &other);
    PyObject *result = list != NULL ? with_ours(call, name, list, other)
                                    : NULL;
    Py_XDECREF(list);
    return result;
}

#define CALL(function, name, second, call, text)                              \
    const char wm_py_requests_##function##_doc[] = PyDoc_STR(                 \
        name "($type, requests, " second "=None)\n--\n\n" text);              \
                                                                              \
    PyObject *wm_py_requests_##function(PyObject *type, PyObject *args,       \
                                        PyObject *kwargs)                     \
    {                                                                         \
        (void)type;                                                           \
        return call_on_list(name, second, call, args, kwargs);                \
    }

CALL(waitall, "Waitall", "statuses", wait_for_each,
     "Wait for all requests. The list may mix warpmpi's and MPI's\n"
     "requests. Waitall is faster than MPI.Request.Waitall, which also\n"
     "completes warpmpi's requests under MPI_THREAD_MULTIPLE.")
CALL(waitany, "Waitany", "status", wait_for_any,
     "Wait for one of the requests, and return its index. The list may\n"
     "mix warpmpi's and MPI's requests.")
CALL(waitsome, "Waitsome", "statuses", wait_for_some,
     "Wait until some of the requests have ended. Return their\n"
     "indices, or None if no request is active.")
CALL(testany, "Testany", "status", look_at,
     "Return (index, flag): flag is True if a request has ended.")
CALL(testall, "Testall", "statuses", look_at,
     "Return True if all requests have ended.")
CALL(testsome, "Testsome", "statuses", look_at,
     "The indices of the requests that have ended.")
CALL(get_status_all, "Get_status_all", "statuses", look_at,
     "Return True if all requests have ended. They must still be\n"
     "waited for.")
CALL(get_status_any, "Get_status_any", "status", look_at,
     "Return (index, flag): flag is True if a request has ended. It must "
     "still be waited for.")
CALL(get_status_some, "Get_status_some", "statuses", look_at,
     "The indices of the requests that have ended, which stay.")
