// SPDX-License-Identifier: BSD-3-Clause
// Tells whether a thread holds the GIL; any thread may ask at any time. Each
// Python version has another public function for this.
#include "python/core/module.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda/lock.h"

#if PY_VERSION_HEX >= 0x030C0000

static bool
is_current(PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked() == thread;
#else
    // The thread's own dictionary is NULL without a current state.
    return PyThreadState_GetDict() != NULL
           && PyInterpreterState_Get() == PyThreadState_GetInterpreter(thread);
#endif
}

static int
watch(void)
{
    return 0;
}

#else

// With the first sub-interpreter PyGILState_Check() becomes true for all
// threads. Then we assume that no thread holds the GIL: kept objects are
// released later, and a thread that waits for a lock keeps the GIL.
static atomic_bool misled;

static bool
is_current(PyThreadState *Py_UNUSED(thread))
{
    return !atomic_load_explicit(&misled, memory_order_relaxed)
           && PyGILState_Check();
}

static int
hear(const char *event, PyObject *Py_UNUSED(arguments),
     void *Py_UNUSED(unused))
{
    if (strcmp(event, "cpython.PyInterpreterState_New") == 0)
        atomic_store(&misled, true);
    return 0;
}

static int
watch(void)
{
    bool before;
    Py_BEGIN_ALLOW_THREADS;
    before = PyGILState_Check();
    Py_END_ALLOW_THREADS;
    if (before)
        atomic_store(&misled, true);
    return before ? 0 : PySys_AddAuditHook(hear, NULL);
}

#endif

bool
wm_py_holds_gil(void)
{
    PyThreadState *thread = PyGILState_GetThisThreadState();
    return thread != NULL && is_current(thread);
}

static bool
is_alive(void)
{
    return Py_IsInitialized();
}

static void *
let_go(void)
{
    return Py_IsInitialized() && wm_py_holds_gil() ? PyEval_SaveThread()
                                                   : NULL;
}

static void
take_back(void *held)
{
    PyEval_RestoreThread(held);
}

int
wm_py_watch_gil(void)
{
    static bool watching; // the import may be repeated
    if (!watching) {
        if (watch() < 0)
            return -1;
        watching = true;
    }
    wm_lock_set_holder(let_go, take_back, is_alive);
    return 0;
}
