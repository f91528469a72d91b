// SPDX-License-Identifier: BSD-3-Clause
// The extension module warpmpi._core: its state, and how C errors become
// Python exceptions. One interpreter only (sub-interpreters are refused), so
// the state is found without a module at hand. GIL held throughout.
#ifndef WM_PYTHON_CORE_MODULE_H
#define WM_PYTHON_CORE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "cuda/error.h"

typedef struct {
    PyObject *cuda_error;   // wm.CudaError(RuntimeError)
    PyObject *memory_error; // wm.OutOfMemoryError(CudaError, MemoryError)
    PyTypeObject *device_type;
    PyTypeObject *stream_type;
    PyTypeObject *event_type;
    PyTypeObject *array_type;
    PyTypeObject *collectives_type;
    PyTypeObject *comm_type;
    PyTypeObject *request_type;
    PyObject *mpi_exception; // mpi4py.MPI.Exception
} wm_state_t;

// The module's state; valid once its exec slot began.
wm_state_t *
wm_py_state(void);

// Sets the Python exception that `err` stands for (see wm_code_t) and returns
// NULL; WM_ERR_PYTHON leaves the one already set.
PyObject *
wm_py_raise(const wm_error_t *err);

// Nothing is asked of MPI where it does not run, nor in a forked child: -1
// with a RuntimeError there.
WM_MUST_CHECK int
wm_py_check_running(void);

// Whether this thread holds the GIL; any thread, at any time.
bool
wm_py_holds_gil(void);

// From here on the floors below let go of the GIL where they wait. 0, or -1
// with an exception.
WM_MUST_CHECK int
wm_py_watch_gil(void);

// Each file with types or functions has one of these: adds them to the module
// and fills its part of the state. 0, or -1 with an exception set.
int
wm_py_add_device(PyObject *module);
int
wm_py_add_stream(PyObject *module);
int
wm_py_add_event(PyObject *module);
int
wm_py_add_array(PyObject *module);
int
wm_py_add_view(PyObject *module);
int
wm_py_add_collectives(PyObject *module);
int
wm_py_add_child(PyObject *module); // called by comm
int
wm_py_add_comm(PyObject *module);
int
wm_py_add_staged(PyObject *module);
int
wm_py_add_checked(PyObject *module);
int
wm_py_add_reduced(PyObject *module);
int
wm_py_add_stats(PyObject *module);
int
wm_py_add_request(PyObject *module);
int
wm_py_add_prequest(PyObject *module);
int
wm_py_add_partitioned(PyObject *module); // after prequest
int
wm_py_add_passing(PyObject *module);
int
wm_py_add_patch(PyObject *module);
int
wm_py_add_matched(PyObject *module);
int
wm_py_add_buffered(PyObject *module);
int
wm_py_add_objects(PyObject *module);
int
wm_py_add_parts(PyObject *module);

#endif
