// SPDX-License-Identifier: BSD-3-Clause
// The thread that reports waits inside MPI, where we do not wait ourselves:
// calls on host-only communicators, and those that make something. It finds
// out that the main thread has done nothing in Python for long, and then asks
// warpmpi/_watching.py for the call. Without such a wait, and without a
// signal, it never takes the GIL.
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "cuda/lock.h"
#include "python/core/module.h"

#define AGAIN_US 60000000
#define LOOKS 4 // in the time after which a wait is reported
#define SHORTEST_US 50000

static sem_t wanted, ended;
static _Atomic bool passed; // the main thread has run note_progress()
static _Atomic bool stopping;
static pid_t process; // that has the thread; 0: none

// The main thread runs this between two steps of Python code.
static int
note_progress(void *Py_UNUSED(unused))
{
    atomic_store(&passed, true);
    return 0;
}

// Called by the signal's handler.
static void
watch_wake(void)
{
    sem_post(&wanted);
}

// Returns true if the signal has come.
static bool
watch_sleep(int64_t duration)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t end = until.tv_nsec / 1000 + duration;
    until.tv_sec += end / 1000000;
    until.tv_nsec = end % 1000000 * 1000;
    int code;
    while ((code = sem_timedwait(&wanted, &until)) != 0 && errno == EINTR)
        ;
    return code == 0;
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

static void *
watch_run(void *unused)
{
    int64_t limit = wm_hang_limit_inside(), since = 0, due = 0;
    int64_t pause = limit / LOOKS > SHORTEST_US ? limit / LOOKS : SHORTEST_US;
    while (true) {
        bool asked = watch_sleep(pause);
        if (atomic_load(&stopping))
            break;
        int64_t now = wm_engine_now();
        if (atomic_exchange(&passed, false)) {
            if (Py_AddPendingCall(note_progress, NULL) < 0)
                atomic_store(&passed, true); // no room: ask again later
            since = now;
            due = now + limit;
        }
        bool late = now >= due && !wm_hang_sees_wait();
        if (late || asked)
            watch_tell(now - since, asked);
        if (now >= due)
            due = now + AGAIN_US;
    }
    sem_post(&ended);
    return unused;
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
    if (size < 2 || wm_hang_limit() == 0 || sem_init(&wanted, 0, 0) != 0
        || sem_init(&ended, 0, 0) != 0)
        Py_RETURN_NONE;
    atomic_store(&passed, true);
    if (wm_thread_start(watch_run)) {
        process = getpid();
        wm_hang_set_waker(watch_wake);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(watch_end_doc, "_watch_end()\n--\n\n"
                            "End the thread of _watch().");

static PyObject *
watch_end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (process == getpid()) { // else it has no thread
        process = 0;
        wm_hang_set_waker(NULL);
        atomic_store(&stopping, true);
        sem_post(&wanted);
        WM_PY_UNLOCKED(while (sem_wait(&ended) != 0 && errno == EINTR));
    }
    Py_RETURN_NONE;
}

PyMethodDef wm_py_watch_functions[] = {
    {"_watch", watch, METH_NOARGS, watch_doc},
    {"_watch_end", watch_end, METH_NOARGS, watch_end_doc},
    {0},
};
