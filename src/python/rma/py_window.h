// SPDX-License-Identifier: BSD-3-Clause
// wm.Win: an MPI.Win whose parts may be GPU memory. The calls that move data
// are in py_window_calls.c, those that synchronize in py_window_sync.c, the
// rest in warpmpi/_windows.py. GIL held; released around each wait.
#ifndef WM_PYTHON_RMA_PY_WINDOW_H
#define WM_PYTHON_RMA_PY_WINDOW_H

#include <mpi4py/mpi4py.h>

#include "comm/rma/window.h"
#include "python/core/arguments.h"
#include "python/core/mpi4py.h"
#include "python/message/channel.h"

// Only the layout of mpi4py's header is used here.
typedef struct {
    PyMPIWinObject base;
    wm_window_t *window; // NULL: the window is MPI's alone, or was freed
    PyObject *comm;      // the window's own communicator
    PyObject *memory;    // the array that this rank gives; or NULL
    char *data;          // its first byte
    Py_buffer raw;       // of host memory; obj NULL: none
    PyObject *attached;  // arrays by address: a dict, of a dynamic window
    PyObject *detached;  // arrays that graphs may use: a list; or NULL
    PyObject *made;      // the name of the call that made it; or NULL
} wm_py_window_t;

// Returns the window for a call, or NULL: without an exception if MPI does the
// call.
wm_window_t *
wm_py_window_of(const wm_py_window_t *self);

// Reads a rank of the window. Returns 0; 1 for MPI_PROC_NULL; -1 with an
// exception.
int
wm_py_window_rank(const wm_window_t *window, PyObject *value, const char *call,
                  int *rank);

// Makes the call of that name of MPI's own window, which serves the parts in
// host memory.
PyObject *
wm_py_window_beneath(PyObject *self, const char *call, PyObject *const *args,
                     Py_ssize_t given, PyObject *keywords);

// Called with an exception set, which stays: tells the window's error handler
// if the exception is MPI's. Returns NULL.
PyObject *
wm_py_window_fail(PyObject *self);

// Calls of a table: X(name)
#define WM_PY_WINDOW_CALLS(X)                                                 \
    X(Put)                                                                    \
    X(Get)                                                                    \
    X(Accumulate)                                                             \
    X(Get_accumulate)                                                         \
    X(Fetch_and_op)                                                           \
    X(Compare_and_swap)                                                       \
    X(Rput)                                                                   \
    X(Rget)                                                                   \
    X(Raccumulate)                                                            \
    X(Rget_accumulate)                                                        \
    X(Fence)                                                                  \
    X(Lock)                                                                   \
    X(Unlock)                                                                 \
    X(Lock_all)                                                               \
    X(Unlock_all)                                                             \
    X(Flush)                                                                  \
    X(Flush_local)                                                            \
    X(Flush_all)                                                              \
    X(Flush_local_all)                                                        \
    X(Sync)                                                                   \
    X(Post)                                                                   \
    X(Start)                                                                  \
    X(Complete)                                                               \
    X(Wait)                                                                   \
    X(Test)

#define X(name)                                                               \
    extern const char wm_py_window_##name##_doc[];                            \
    PyObject *wm_py_window_##name(PyObject *self, PyObject *const *args,      \
                                  Py_ssize_t given, PyObject *keywords);
WM_PY_WINDOW_CALLS(X)
#undef X

// Returns the window for a call of win.on(stream), and the stream, borrowed
// from `bound`, a StreamComm; NULL with an exception.
wm_window_t *
wm_py_window_on(PyObject *self, PyObject *bound, const char *call,
                const wm_on_stream_t **on);

// The calls of win.on(stream).
extern const char wm_py_window_on_call_doc[];
PyObject *
wm_py_window_on_call(PyObject *self, PyObject *const *args, Py_ssize_t given);
extern const char wm_py_window_on_sync_doc[];
PyObject *
wm_py_window_on_sync(PyObject *self, PyObject *args);

#endif
