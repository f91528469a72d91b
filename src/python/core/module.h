// SPDX-License-Identifier: BSD-3-Clause
// The extension module warpmpi._core: its state, its tables, and the
// conversion of C errors to Python exceptions. GIL held throughout.
#ifndef WM_PYTHON_CORE_MODULE_H
#define WM_PYTHON_CORE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include "python/core/compat.h"
#include "python/core/kept.h"

#include <stdbool.h>

#include "array/dtype.h"
#include "cuda/device.h"
#include "cuda/error.h"

// Our types, and the types that each derives from (module.c).
#define WM_PY_TYPES(X)                                                        \
    X(device, NULL)                                                           \
    X(stream, NULL)                                                           \
    X(event, NULL)                                                            \
    X(array, NULL)                                                            \
    X(request, &mpi_request)                                                  \
    X(prequest, &state->request_type, &mpi_prequest)                          \
    X(partitioned, &state->prequest_type)                                     \
    X(persistent_coll, &state->prequest_type)                                 \
    X(comm, NULL)                                                             \
    X(on_stream, NULL)                                                        \
    X(halo, NULL)                                                             \
    X(matched, &mpi_message)                                                  \
    X(window, &mpi_win)                                                       \
    X(payload, NULL)                                                          \
    X(average, NULL)                                                          \
    X(passing, NULL)                                                          \
    X(shared, NULL)                                                           \
    X(dispatch, NULL)

// Tables of functions, one for each file.
#define WM_PY_FUNCTIONS(X)                                                    \
    X(module)                                                                 \
    X(watch)                                                                  \
    X(child)                                                                  \
    X(patch)                                                                  \
    X(stats)                                                                  \
    X(peer_stats)                                                             \
    X(devices)                                                                \
    X(makers)                                                                 \
    X(array)                                                                  \
    X(on_device)                                                              \
    X(raw)                                                                    \
    X(checked)                                                                \
    X(attempt)                                                                \
    X(coll_args)                                                              \
    X(reduced)                                                                \
    X(average)                                                                \
    X(local)                                                                  \
    X(thresholds)                                                             \
    X(require)                                                                \
    X(buffered)                                                               \
    X(stock)                                                                  \
    X(objects)                                                                \
    X(parts)                                                                  \
    X(pickle)                                                                 \
    X(runs)                                                                   \
    X(staged)                                                                 \
    X(shared)                                                                 \
    X(dispatch)

// The library of objects of a type, by the type's address (view.c).
typedef struct {
    PyTypeObject *type;
    const struct wm_view_library *library; // NULL: ask for protocols
    const void *found;                     // result of `claims`, for `parse`
} wm_library_of_type_t;

#define WM_TYPES_KEPT 64

// All Python objects that outlive a call. Pointers that live as long as the
// process are kept in the files that use them.
typedef struct {
#define X(name, ...) PyTypeObject *name##_type;
    WM_PY_TYPES(X)
#undef X
#define X(name) PyObject *name;
    WM_PY_OBJECTS(X)
#undef X
    struct {
#define X(name, text) PyObject *name;
        WM_PY_NAMES(X)
#undef X
    } names;
    PyObject *devices[WM_MAX_DEVICES + 1]; // by ordinal + 1, made at first use
    PyObject *dtypes[WM_DTYPES];           // numpy.dtype, made at first use
    wm_library_of_type_t libraries[WM_TYPES_KEPT]; // a cache
} wm_state_t;

// The module's state. Never NULL: empty before and after the module's life.
extern wm_state_t *wm_py_state;

#define X(name, ...) extern PyType_Spec wm_py_##name##_spec;
WM_PY_TYPES(X)
#undef X
#define X(name) extern PyMethodDef wm_py_##name##_functions[];
WM_PY_FUNCTIONS(X)
#undef X

// Rows of tables of methods; function##_doc is the docstring.
#define WM_PY_ROW(name, function, flags)                                      \
    {                                                                         \
        name, (PyCFunction)(void (*)(void))(function), flags, function##_doc  \
    }
#define WM_PY_FASTCALL(name, function)                                        \
    WM_PY_ROW(name, function, METH_FASTCALL | METH_KEYWORDS)
#define WM_PY_KEYWORDS(name, function)                                        \
    WM_PY_ROW(name, function, METH_VARARGS | METH_KEYWORDS)

// Sets the Python exception of `err` (see wm_code_t) and returns NULL;
// WM_ERR_PYTHON leaves the one already set.
PyObject *
wm_py_raise(const wm_error_t *err);

// Convert a code: to 0, or -1 with the exception set; to None, or NULL.
int
wm_py_result(int code, const wm_error_t *err);
PyObject *
wm_py_none(int code, const wm_error_t *err);

// Raise an exception; the error behind its argument's name; one of an MPI
// class. Return -1.
int
wm_py_fail(PyObject *type, const char *format, ...);
int
wm_py_raise_of(const char *argument, wm_error_t *err);
int
wm_py_mpi_fail(int error_class, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Writes the text of the exception that is set into `err`, for other ranks;
// the exception stays. Returns `code`.
int
wm_py_describe(int code, wm_error_t *err);

// Warns of what an object loses that is being freed: a warning that raises is
// printed. An exception stays.
void
wm_py_warn_of_loss(PyObject *object, const char *text);

// Runs a statement without the GIL.
#define WM_PY_UNLOCKED(statement)                                             \
    do {                                                                      \
        PyThreadState *wm_py_saved = PyEval_SaveThread();                     \
        statement;                                                            \
        PyEval_RestoreThread(wm_py_saved);                                    \
    } while (0)

// Calls a Python function of the package, for what no message waits for;
// `format` makes the arguments. Returns a reference; NULL with an exception.
PyObject *
wm_py_cold(const char *module, const char *function, const char *format, ...);

// Returns -1 with a RuntimeError if MPI does not run, or in a forked child;
// nothing may be asked of MPI then.
WM_MUST_CHECK int
wm_py_check_running(void);

// For the import: make wm.CudaError and wm.OutOfMemoryError; register the
// handler of forked children; make the layers below release the GIL where they
// wait. Return 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_add_exceptions(PyObject *module);
WM_MUST_CHECK int
wm_py_watch_children(void);
WM_MUST_CHECK int
wm_py_watch_gil(void);

// Returns true if this thread holds the GIL; any thread, at any time.
bool
wm_py_holds_gil(void);

#endif
