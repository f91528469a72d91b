// SPDX-License-Identifier: BSD-3-Clause
// The watchdog's thread is told of calls. This file lets the thread look at
// waits inside MPI as well: those of host-only communicators, and of calls
// that make something. The main thread has done nothing in Python for long
// then, and warpmpi/_watching.py tells its call. Without such a wait, and
// without a signal, the thread never takes the GIL.
#include <stdatomic.h>
#include <unistd.h>

#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/diagnostics/watchdog.h"
#include "python/core/module.h"

#define LOOKS 4 // in the time after which a wait is reported
#define SHORTEST_US 50000

static _Atomic bool passed; // the main thread has run note_progress()
static pid_t process;       // that has the thread; 0: none

// The main thread runs this between two steps of Python code.
static int
note_progress(void *Py_UNUSED(unused))
{
    atomic_store(&passed, true);
    return 0;
}

static void
watch_tell(int64_t waited, bool asked)
{
    wm_words_t words = {.length = 0};
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *told = wm_py_cold("warpmpi._watching", "tell", "dO",
                                (double)waited / 1e6,
                                asked ? Py_True : Py_False);
    const char *text = told != NULL && told != Py_None ? PyUnicode_AsUTF8(told)
                                                       : NULL;
    if (text != NULL)
        wm_words_add(&words, "%s%s", wm_hang_who(), text);
    PyErr_Clear();
    Py_XDECREF(told);
    PyGILState_Release(state);
    if (words.length > 0)
        wm_words_print(&words);
}

static int64_t
watch_look(int64_t now, bool asked, bool watched)
{
    static int64_t since, due;
    int64_t limit = wm_hang_limit_inside();
    int64_t pause = limit / LOOKS > SHORTEST_US ? limit / LOOKS : SHORTEST_US;
    if (atomic_exchange(&passed, false)) {
        if (Py_AddPendingCall(note_progress, NULL) < 0)
            atomic_store(&passed, true); // no room: ask again later
        since = now;
        due = now + limit;
    }
    bool late = now >= due && !watched && !wm_engine_is_entered();
    if (late || asked)
        watch_tell(now - since, asked);
    if (now >= due)
        due = now + WM_REPORT_AGAIN_US;
    return now + pause;
}

PyDoc_STRVAR(watch_doc,
             "_watch()\n--\n\n"
             "Begin to report long waits inside MPI, and answer SIGUSR1 from\n"
             "now on. Does nothing the second time, and before MPI runs.");

static PyObject *
watch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static bool begun;
    int size = 0, code;
    wm_error_t err;
    if (begun || wm_engine_check_world(NULL) < 0)
        Py_RETURN_NONE;
    begun = true;
    wm_engine_lock();
    code = wm_hang_configure(&err);
    wm_engine_unlock();
    if (code < 0) { // without GPUs nothing else reads the setting
        if (PyErr_WarnEx(PyExc_RuntimeWarning, err.text, 1) < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2 || wm_hang_limit() == 0)
        Py_RETURN_NONE;
    atomic_store(&passed, true);
    if (wm_watchdog_set_look(watch_look))
        process = getpid();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(watch_end_doc, "_watch_end()\n--\n\n"
                            "End what _watch() has begun.");

static PyObject *
watch_end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (process == getpid()) { // else it has no thread
        process = 0;
        (void)wm_watchdog_set_look(NULL);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(count_makers_doc,
             "_count_makers(change, /)\n--\n\n"
             "Add to the number of threads that make a communicator, and\n"
             "return what to say if there were several at a time, or None.");

static PyObject *
count_makers(PyObject *Py_UNUSED(module), PyObject *change)
{
    long by = PyLong_AsLong(change);
    if (by == -1 && PyErr_Occurred())
        return NULL;
    int makers = wm_watchdog_count_makers((int)by);
    if (makers < 2)
        Py_RETURN_NONE;
    return PyUnicode_FromFormat(WM_WATCHDOG_MAKERS, makers);
}

PyMethodDef wm_py_watch_functions[] = {
    {"_count_makers", count_makers, METH_O, count_makers_doc},
    {"_watch", watch, METH_NOARGS, watch_doc},
    {"_watch_end", watch_end, METH_NOARGS, watch_end_doc},
    {0},
};
