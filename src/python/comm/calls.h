// SPDX-License-Identifier: BSD-3-Clause
// The message calls of communicators, which comm.on(stream) has as well, and
// the probes of communicators. GIL held; released while waiting.
#ifndef WM_PYTHON_COMM_CALLS_H
#define WM_PYTHON_COMM_CALLS_H

#include "python/core/module.h"

#define WM_PY_MESSAGE_CALLS(X)                                                \
    X(Send)                                                                   \
    X(Ssend)                                                                  \
    X(Rsend)                                                                  \
    X(Bsend)                                                                  \
    X(Isend)                                                                  \
    X(Issend)                                                                 \
    X(Irsend)                                                                 \
    X(Ibsend)                                                                 \
    X(Recv)                                                                   \
    X(Irecv)                                                                  \
    X(Send_init)                                                              \
    X(Ssend_init)                                                             \
    X(Rsend_init)                                                             \
    X(Bsend_init)                                                             \
    X(Recv_init)                                                              \
    X(Psend_init)                                                             \
    X(Precv_init)                                                             \
    X(Sendrecv)                                                               \
    X(Sendrecv_replace)                                                       \
    X(Isendrecv)                                                              \
    X(Isendrecv_replace)

#define WM_PY_PROBE_CALLS(X)                                                  \
    X(Probe)                                                                  \
    X(Iprobe)                                                                 \
    X(Mprobe)                                                                 \
    X(Improbe)

// Parts of docstrings, each of whole lines.
#define WM_PY_DOC_ARRAY                                                       \
    "buf: a GPU array (wm, CuPy, PyTorch, JAX, Warp, Numba) or a host\n"      \
    "array, alone or as [array, count, datatype]. A count is in elements,\n"  \
    "and an array may have gaps.\n"
#define WM_PY_DOC_SENT                                                        \
    WM_PY_DOC_ARRAY                                                           \
    "The array is read after the work on its library's current stream.\n"     \
    "Between GPUs of one host that reach each other the receiver copies\n"    \
    "from the array. Other GPU arrays go through page-locked host memory.\n"
#define WM_PY_DOC_RECEIVED                                                    \
    WM_PY_DOC_ARRAY                                                           \
    "The array must be writable. The sender's may be in other memory.\n"
#define WM_PY_DOC_RAISES                                                      \
    "\nRaises MPI.Exception (rank, tag, truncation), TypeError, ValueError\n" \
    "or BufferError (buffer), wm.CudaError and MemoryError."

// Each call has a function in its file, and a method (py_comm.c), which passes
// errors to the communicator's error handler.
#define X(name)                                                               \
    extern const char wm_py_comm_##name##_doc[];                              \
    PyObject *wm_py_comm_##name(PyObject *self, PyObject *const *args,        \
                                Py_ssize_t given, PyObject *keywords);        \
    PyObject *wm_py_comm_call_##name(PyObject *self, PyObject *const *args,   \
                                     Py_ssize_t given, PyObject *keywords);
WM_PY_MESSAGE_CALLS(X)
WM_PY_PROBE_CALLS(X)
#undef X

// The barrier, and the one before a collective of that name.
extern const char wm_py_comm_Barrier_doc[], wm_py_comm_wait_for_all_doc[];
PyObject *
wm_py_comm_Barrier(PyObject *self, PyObject *unused);
PyObject *
wm_py_comm_wait_for_all(PyObject *self, PyObject *name);

// Returns (name, reason) for (rank, buffer or None); the method that
// wm.transport() calls.
extern const char wm_py_comm_engine_doc[];
PyObject *
wm_py_comm_engine(PyObject *self, PyObject *const *args, Py_ssize_t given);

extern const char wm_py_comm_transport_doc[];
PyObject *
wm_py_comm_transport(PyObject *self, PyObject *const *args, Py_ssize_t given);

// Makes a wm.StreamComm. Returns NULL with an exception if the object is no
// stream, or is the per-thread default stream.
PyObject *
wm_py_on_stream(PyObject *comm, PyObject *stream);

// A row of the table of methods.
#define WM_PY_CALL_ROW(name)                                                  \
    {#name, (PyCFunction)(void (*)(void))wm_py_comm_call_##name,              \
     METH_FASTCALL | METH_KEYWORDS, wm_py_comm_##name##_doc},

#endif
