// SPDX-License-Identifier: BSD-3-Clause
// The calls of wm.Win that synchronize.
#include <stdlib.h>
#include <string.h>

#include "comm/diagnostics/hang.h"
#include "comm/rma/window_run.h"
#include "comm/rma/window_sync.h"
#include "python/rma/py_window.h"
#include "python/view/view.h"

typedef struct {
    wm_py_window_t *self;
    wm_window_t *window;
    const char *name;
    PyObject *const *args;
    Py_ssize_t given;
    PyObject *keywords;
    PyObject *values[3];
    wm_error_t err;
    int code;
} sync_t;

static PyObject *
sync_beneath(const sync_t *sync)
{
    return wm_py_window_beneath((PyObject *)sync->self, sync->name, sync->args,
                                sync->given, sync->keywords);
}

// Begins a call. Returns false if MPI does it, or it failed: then *result is
// the call's.
static bool
sync_begin(const char *name, const char *const *names, int count, int required,
           PyObject *self, PyObject *const *args, Py_ssize_t given,
           PyObject *keywords, sync_t *sync, PyObject **result)
{
    sync->self = (wm_py_window_t *)self;
    sync->name = name;
    sync->args = args;
    sync->given = given;
    sync->keywords = keywords;
    sync->code = 0;
    *result = NULL;
    sync->window = wm_py_window_of(sync->self);
    if (sync->window == NULL) {
        if (!PyErr_Occurred())
            *result = sync_beneath(sync);
        return false;
    }
    if (wm_py_arguments(name, names, count, required, args, given, keywords,
                        sync->values)
        < 0)
        return false;
    wm_hang_call(name, false);
    return true;
}

// Ends a call, or raises its error.
static PyObject *
sync_end(sync_t *sync)
{
    wm_waiting_call.name = NULL;
    wm_window_release_ended(sync->window);
    if (sync->code < 0)
        return wm_py_raise(&sync->err);
    Py_RETURN_NONE;
}

// Waits for this rank's own work on an array, which others will see. Returns 0
// or -1 with an exception.
static int
settle_array(PyObject *memory, const char *data)
{
    wm_producer_t producer = {.kind = WM_PRODUCER_NONE};
    wm_error_t err;
    bool idle;
    if (wm_py_view_refresh(memory, "memory", data, &producer) < 0)
        return -1;
    if (producer.kind == WM_PRODUCER_NONE)
        return 0;
    int code = wm_producer_refuse_capture(&producer, &err);
    if (code == 0)
        code = wm_producer_idle(&producer, true, &idle, &err);
    if (code == 0 && !idle)
        WM_PY_UNLOCKED(code = wm_producer_wait(&producer, true, &err));
    return wm_py_result(code, &err);
}

// Does so for this rank's part.
static int
sync_settle(const sync_t *sync)
{
    const wm_py_window_t *self = sync->self;
    PyObject *address, *memory;
    Py_ssize_t at = 0;
    int code = 0;
    if (sync->window->parts[sync->window->comm->rank].on_device)
        return settle_array(self->memory, self->data);
    while (self->attached != NULL && code == 0
           && PyDict_Next(self->attached, &at, &address, &memory))
        code = settle_array(memory, PyLong_AsVoidPtr(address));
    return code;
}

// Runs a statement with the window's lock, without the GIL.
#define SYNC_RUN(sync, statement)                                             \
    WM_PY_UNLOCKED({                                                          \
        wm_lock(&(sync)->window->lock);                                       \
        (sync)->code = (statement);                                           \
        pthread_mutex_unlock(&(sync)->window->lock);                          \
    })

static int
read_assertion(const sync_t *sync, int at, int *assertion)
{
    *assertion = 0;
    return wm_py_argument_int(sync->values[at], "assertion", assertion);
}

#define SYNC_CALL(call)                                                       \
    static PyObject *sync_##call(PyObject *self, PyObject *const *args,       \
                                 Py_ssize_t given, PyObject *keywords);       \
                                                                              \
    PyObject *wm_py_window_##call(PyObject *self, PyObject *const *args,      \
                                  Py_ssize_t given, PyObject *keywords)       \
    {                                                                         \
        PyObject *result = sync_##call(self, args, given, keywords);          \
        return result != NULL ? result : wm_py_window_fail(self);             \
    }                                                                         \
                                                                              \
    static PyObject *sync_##call(PyObject *self, PyObject *const *args,       \
                                 Py_ssize_t given, PyObject *keywords)

#define SYNC_BEGIN(call, count, required, ...)                                \
    static const char *const names[] = {__VA_ARGS__};                         \
    sync_t sync;                                                              \
    PyObject *result;                                                         \
    if (!sync_begin(#call, names, count, required, self, args, given,         \
                    keywords, &sync, &result))                                \
        return result;

const char wm_py_window_Fence_doc[] = PyDoc_STR(
    "Fence($self, /, assertion=0)\n--\n\n"
    "Wait for all ranks, and for the calls of all ranks on the window: then\n"
    "each rank sees what the others have written to its memory, and kernels\n"
    "that it launches later do, too. Collective.\n\n"
    "This rank's own work on its memory ends first. The next calls on the\n"
    "window may follow, unless the assertion has MPI.MODE_NOSUCCEED. Raises\n"
    "MPI.Exception (ERR_RMA_SYNC), on all ranks, if one rank has an epoch of\n"
    "Lock, Start or Post open.");

SYNC_CALL(Fence)
{
    static const char *const names[] = {"assertion"};
    int assertion = 0, code = 0;
    sync_t sync;
    PyObject *result, *raised = NULL;
    bool begun = sync_begin("Fence", names, 1, 0, self, args, given, keywords,
                            &sync, &result);
    if (!begun && sync.window == NULL)
        return result;
    wm_hang_call("Fence", true);
    if (!begun || read_assertion(&sync, 0, &assertion) < 0
        || sync_settle(&sync) < 0) {
        raised = PyErr_GetRaisedException();
        code = WM_ERR_STATE;
    }
    SYNC_RUN(&sync,
             wm_window_fence(sync.window, !(assertion & MPI_MODE_NOSUCCEED),
                             code, &sync.err));
    if (raised != NULL) {
        wm_waiting_call.name = NULL;
        PyErr_SetRaisedException(raised);
        return NULL;
    }
    return sync_end(&sync);
}

const char wm_py_window_Lock_doc[] = PyDoc_STR(
    "Lock($self, /, rank, lock_type=mpi4py.MPI.LOCK_EXCLUSIVE, "
    "assertion=0)\n--\n\n"
    "Lock the memory of a rank, alone or shared, and wait for the lock. The\n"
    "rank itself does nothing. Ranks get the lock in the order in which they\n"
    "ask. MPI.PROC_NULL locks nothing.\n\n"
    "lock_type: MPI.LOCK_EXCLUSIVE or MPI.LOCK_SHARED. assertion: with\n"
    "MPI.MODE_NOCHECK no rank of this host is waited for. Raises\n"
    "MPI.Exception: ERR_RMA_SYNC if this rank holds the lock, or has another\n"
    "epoch open, ERR_LOCKTYPE, ERR_RANK, and an error of ULFM if a rank of\n"
    "the window dies. Raises RuntimeError below MPI_THREAD_MULTIPLE, if the\n"
    "other rank's process must do the calls on the memory itself (another\n"
    "host, memory that is not mapped here).");

SYNC_CALL(Lock)
{
    int rank, type = MPI_LOCK_EXCLUSIVE, assertion;
    SYNC_BEGIN(Lock, 3, 1, "rank", "lock_type", "assertion")
    wm_waiting_call.collective = true; // it waits for other ranks
    int code = wm_py_window_rank(sync.window, sync.values[0], "Lock", &rank);
    if (code < 0 || wm_py_argument_int(sync.values[1], "lock_type", &type) < 0
        || read_assertion(&sync, 2, &assertion) < 0)
        return NULL;
    if (code > 0)
        Py_RETURN_NONE;
    if (type != MPI_LOCK_EXCLUSIVE && type != MPI_LOCK_SHARED) {
        wm_py_mpi_fail(MPI_ERR_LOCKTYPE,
                       "Lock: lock_type is %d: use MPI.LOCK_EXCLUSIVE or "
                       "MPI.LOCK_SHARED",
                       type);
        return NULL;
    }
    SYNC_RUN(&sync,
             wm_window_lock_part(sync.window, rank, type == MPI_LOCK_EXCLUSIVE,
                                 !(assertion & MPI_MODE_NOCHECK), &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Unlock_doc[] = PyDoc_STR(
    "Unlock($self, /, rank)\n--\n\n"
    "End this rank's calls, and give the lock of a rank's memory back.\n\n"
    "For its own memory this rank's own work on the memory ends first.\n"
    "MPI.PROC_NULL does nothing. Raises MPI.Exception: ERR_RMA_SYNC if this\n"
    "rank has not locked the memory by Lock, ERR_RANK, and errors of the\n"
    "calls that end here; RuntimeError while a stream that has written the\n"
    "rank's own memory is being captured.");

SYNC_CALL(Unlock)
{
    int rank;
    SYNC_BEGIN(Unlock, 1, 1, "rank")
    int code = wm_py_window_rank(sync.window, sync.values[0], "Unlock", &rank);
    if (code < 0)
        return NULL;
    if (code > 0)
        Py_RETURN_NONE;
    if (rank == sync.window->comm->rank && sync_settle(&sync) < 0)
        return NULL;
    SYNC_RUN(&sync, wm_window_unlock_part(sync.window, rank, &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Lock_all_doc[] = PyDoc_STR(
    "Lock_all($self, /, assertion=0)\n--\n\n"
    "Lock the memory of all ranks, shared, as Lock does. assertion and\n"
    "errors as Lock. If one lock fails, no memory stays locked.");

SYNC_CALL(Lock_all)
{
    int assertion;
    SYNC_BEGIN(Lock_all, 1, 0, "assertion")
    wm_waiting_call.collective = true; // it waits for other ranks
    if (read_assertion(&sync, 0, &assertion) < 0)
        return NULL;
    SYNC_RUN(&sync,
             wm_window_lock_all(sync.window, !(assertion & MPI_MODE_NOCHECK),
                                &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Unlock_all_doc[] = PyDoc_STR(
    "Unlock_all($self, /)\n--\n\n"
    "End the calls of this rank, and give all locks of Lock_all back.\n\n"
    "This rank's own work on its memory ends first. Raises MPI.Exception:\n"
    "ERR_RMA_SYNC without Lock_all, and errors of the calls that end here;\n"
    "RuntimeError as Unlock.");

SYNC_CALL(Unlock_all)
{
    SYNC_BEGIN(Unlock_all, 0, 0, NULL)
    if (sync_settle(&sync) < 0)
        return NULL;
    SYNC_RUN(&sync, wm_window_unlock_all(sync.window, &sync.err));
    return sync_end(&sync);
}

// Ends the work of this rank: for one target, or all (-1).
static int
flush(sync_t *sync, int target)
{
    int code = wm_window_check_held(sync->window, target, sync->name,
                                    &sync->err);
    return code < 0 ? code : wm_window_complete(sync->window, &sync->err);
}

static PyObject *
flush_one(sync_t *sync)
{
    int rank;
    int code = wm_py_window_rank(sync->window, sync->values[0], sync->name,
                                 &rank);
    if (code != 0)
        return code < 0 ? NULL : Py_NewRef(Py_None);
    SYNC_RUN(sync, flush(sync, rank));
    return sync_end(sync);
}

static PyObject *
flush_all(sync_t *sync)
{
    SYNC_RUN(sync, flush(sync, -1));
    return sync_end(sync);
}

const char wm_py_window_Flush_doc[] = PyDoc_STR(
    "Flush($self, /, rank)\n--\n\n"
    "Wait until the calls of this rank on the memory of a rank have ended,\n"
    "on both sides. The window has one stream, so that it waits for the\n"
    "calls on other ranks, too. MPI.PROC_NULL does nothing. Raises\n"
    "MPI.Exception: ERR_RMA_SYNC if this rank has not locked the memory by\n"
    "Lock or Lock_all, ERR_RANK, and errors of the calls that end here,\n"
    "such as ERR_RMA_RANGE.");

SYNC_CALL(Flush)
{
    SYNC_BEGIN(Flush, 1, 1, "rank")
    return flush_one(&sync);
}

const char wm_py_window_Flush_local_doc[] = PyDoc_STR(
    "Flush_local($self, /, rank)\n--\n\n"
    "Do as Flush: its errors, and calls end on both sides.");

SYNC_CALL(Flush_local)
{
    SYNC_BEGIN(Flush_local, 1, 1, "rank")
    return flush_one(&sync);
}

const char wm_py_window_Flush_all_doc[] = PyDoc_STR(
    "Flush_all($self, /)\n--\n\n"
    "Wait until all calls of this rank have ended, on both sides. Raises\n"
    "MPI.Exception: ERR_RMA_SYNC if this rank has locked no memory, and\n"
    "errors of the calls that end here, such as ERR_RMA_RANGE.");

SYNC_CALL(Flush_all)
{
    SYNC_BEGIN(Flush_all, 0, 0, NULL)
    return flush_all(&sync);
}

const char wm_py_window_Flush_local_all_doc[] = PyDoc_STR(
    "Flush_local_all($self, /)\n--\n\n"
    "Do as Flush_all: its errors, and calls end on both sides.");

SYNC_CALL(Flush_local_all)
{
    SYNC_BEGIN(Flush_local_all, 0, 0, NULL)
    return flush_all(&sync);
}

const char wm_py_window_Sync_doc[] = PyDoc_STR(
    "Sync($self, /)\n--\n\n"
    "Wait for this rank's own work on its memory, so that others who are\n"
    "told later see it. Needs no epoch. Raises RuntimeError while a stream\n"
    "that has written the memory is being captured.");

SYNC_CALL(Sync)
{
    SYNC_BEGIN(Sync, 0, 0, NULL)
    return sync_settle(&sync) < 0 ? NULL : sync_end(&sync);
}

// Reads the ranks of a group, as those of the window. Returns their number, or
// -1 with an exception.
static int
read_group(const sync_t *sync, int *ranks)
{
    MPI_Group group, all;
    int count = 0, own[WM_BARRIER_RANKS];
    if (wm_py_mpi_group(sync->values[0], "group", &group) < 0)
        return -1;
    if (MPI_Group_size(group, &count) != MPI_SUCCESS
        || count > sync->window->size || count > WM_BARRIER_RANKS)
        return wm_py_mpi_fail(MPI_ERR_GROUP,
                              "%s: group: %d ranks are more than the window "
                              "has",
                              sync->name, count);
    for (int i = 0; i < count; ++i)
        own[i] = i;
    if (MPI_Comm_group(sync->window->comm->data, &all) != MPI_SUCCESS)
        return wm_py_mpi_fail(MPI_ERR_GROUP, "%s: group: not known",
                              sync->name);
    MPI_Group_translate_ranks(group, count, own, all, ranks);
    MPI_Group_free(&all);
    for (int i = 0; i < count; ++i)
        if (ranks[i] == MPI_UNDEFINED)
            return wm_py_mpi_fail(MPI_ERR_GROUP,
                                  "%s: group: its rank %d is no rank of the "
                                  "window",
                                  sync->name, i);
    return count;
}

const char wm_py_window_Post_doc[] = PyDoc_STR(
    "Post($self, /, group, assertion=0)\n--\n\n"
    "Let the ranks of a group access this rank's memory, until Wait. This\n"
    "rank's own work on it ends first. Waits for no other rank.\n\n"
    "group: ranks of the window. assertion: as MPI; it changes nothing.\n"
    "Raises MPI.Exception: ERR_RMA_SYNC if the last Post has no Wait yet, or\n"
    "calls were made since the last Fence, ERR_GROUP for other ranks;\n"
    "RuntimeError as Sync.");

SYNC_CALL(Post)
{
    int ranks[WM_BARRIER_RANKS];
    SYNC_BEGIN(Post, 2, 1, "group", "assertion")
    int count = read_group(&sync, ranks);
    if (count < 0 || sync_settle(&sync) < 0)
        return NULL;
    SYNC_RUN(&sync, wm_window_post(sync.window, ranks, count, &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Start_doc[] = PyDoc_STR(
    "Start($self, /, group, assertion=0)\n--\n\n"
    "Begin to access the memory of the ranks of a group; waits until these\n"
    "have called Post.\n\n"
    "group, assertion: as Post. Raises MPI.Exception: ERR_RMA_SYNC if\n"
    "another epoch is open, or calls were made since the last Fence,\n"
    "ERR_GROUP for other ranks, and an error of ULFM if a rank of the\n"
    "window dies.");

SYNC_CALL(Start)
{
    int ranks[WM_BARRIER_RANKS];
    SYNC_BEGIN(Start, 2, 1, "group", "assertion")
    wm_waiting_call.collective = true; // it waits for other ranks
    int count = read_group(&sync, ranks);
    if (count < 0)
        return NULL;
    SYNC_RUN(&sync, wm_window_start(sync.window, ranks, count, &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Complete_doc[] = PyDoc_STR(
    "Complete($self, /)\n--\n\n"
    "End the calls since Start, and tell the ranks that were accessed.\n\n"
    "Raises MPI.Exception: ERR_RMA_SYNC without Start, and errors of the\n"
    "calls that end here, such as ERR_RMA_RANGE.");

SYNC_CALL(Complete)
{
    SYNC_BEGIN(Complete, 0, 0, NULL)
    SYNC_RUN(&sync, wm_window_end_access(sync.window, &sync.err));
    return sync_end(&sync);
}

const char wm_py_window_Wait_doc[] = PyDoc_STR(
    "Wait($self, /)\n--\n\n"
    "Wait until the ranks of the last Post have called Complete. Returns\n"
    "True, as MPI.Win.Wait. Raises MPI.Exception: ERR_RMA_SYNC without\n"
    "Post, and an error of ULFM if a rank of the window dies.");

SYNC_CALL(Wait)
{
    SYNC_BEGIN(Wait, 0, 0, NULL)
    wm_waiting_call.collective = true; // it waits for other ranks
    SYNC_RUN(&sync, wm_window_wait(sync.window, NULL, &sync.err));
    PyObject *ended = sync_end(&sync);
    if (ended == NULL)
        return NULL;
    Py_DECREF(ended);
    Py_RETURN_TRUE;
}

const char wm_py_window_Test_doc[] = PyDoc_STR(
    "Test($self, /)\n--\n\n"
    "Return True if the ranks of the last Post have called Complete; this\n"
    "ends the Post, as Wait does. Waits for no rank. Errors as Wait.");

SYNC_CALL(Test)
{
    bool ended = false;
    SYNC_BEGIN(Test, 0, 0, NULL)
    SYNC_RUN(&sync, wm_window_wait(sync.window, &ended, &sync.err));
    wm_waiting_call.name = NULL;
    if (sync.code < 0)
        return wm_py_raise(&sync.err);
    if (!ended)
        Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

// --- on a stream ------------------------------------------------------------

const char wm_py_window_on_sync_doc[] = PyDoc_STR(
    "_on_sync($self, on, name, argument, /)\n--\n\n"
    "Make Post or Start of a group, Complete or Wait on the stream of a\n"
    "StreamComm; or Fence with an assertion.");

// Orders a stream behind this rank's work on its memory, or, `after`, that
// work behind the stream.
static int
settle_stream(const wm_py_window_t *self, bool after, const wm_on_stream_t *on)
{
    wm_producer_t producer = {.kind = WM_PRODUCER_NONE};
    wm_error_t err;
    uint64_t capture = 0;
    int code;
    if (!self->window->parts[self->window->comm->rank].on_device)
        return 0;
    if (wm_py_view_refresh(self->memory, "memory", self->data, &producer) < 0)
        return -1;
    if (producer.kind == WM_PRODUCER_NONE)
        return 0;
    WM_PY_UNLOCKED({
        code = wm_stream_capture(on->device, on->stream, &capture, &err);
        if (code == 0)
            code = (after ? wm_producer_after_on : wm_producer_before_on)(
                &producer, true, on->device, on->stream, capture != 0, &err);
    });
    return wm_py_result(code, &err);
}

// Makes Fence, of which the other ranks hear also if it fails here.
static void
fence_on(sync_t *sync, const wm_on_stream_t *on)
{
    PyObject *raised = NULL;
    int assertion, code = 0;
    if (read_assertion(sync, 0, &assertion) < 0
        || settle_stream(sync->self, false, on) < 0) {
        raised = PyErr_GetRaisedException();
        code = WM_ERR_STATE;
    }
    SYNC_RUN(sync, wm_window_fence_on(sync->window,
                                      !(assertion & MPI_MODE_NOSUCCEED), code,
                                      on->device, on->stream, &sync->err));
    if (raised != NULL)
        PyErr_SetRaisedException(raised);
}

PyObject *
wm_py_window_on_sync(PyObject *self, PyObject *args)
{
    static const char *const names[] = {"Post", "Start", "Complete", "Wait"};
    sync_t sync = {.self = (wm_py_window_t *)self};
    PyObject *bound;
    const wm_on_stream_t *on;
    int ranks[WM_BARRIER_RANKS], count = 0;
    unsigned call = 0;
    if (!PyArg_ParseTuple(args, "OsO:_on_sync", &bound, &sync.name,
                          &sync.values[0]))
        return NULL;
    sync.window = wm_py_window_on(self, bound, sync.name, &on);
    if (sync.window == NULL)
        return NULL;
    for (unsigned i = 0; i < 4; ++i)
        if (strcmp(names[i], sync.name) == 0)
            call = 1u << i;
    if (call == WM_EPOCHS_POST || call == WM_EPOCHS_START)
        count = read_group(&sync, ranks);
    if (count < 0
        || (call == WM_EPOCHS_POST && settle_stream(sync.self, false, on) < 0))
        return NULL;
    if (call == 0)
        fence_on(&sync, on);
    else
        SYNC_RUN(&sync,
                 wm_window_epochs_on(sync.window, call, ranks, count,
                                     on->device, on->stream, &sync.err));
    if (PyErr_Occurred())
        return NULL;
    if (sync.code < 0)
        return wm_py_raise(&sync.err);
    if ((call == 0 || call == WM_EPOCHS_WAIT)
        && settle_stream(sync.self, true, on) < 0)
        return NULL;
    Py_RETURN_NONE;
}
