// SPDX-License-Identifier: BSD-3-Clause
// Functions that the calls that send or receive share. GIL held; released
// while waiting.
#ifndef WM_PYTHON_COMM_TRANSFER_H
#define WM_PYTHON_COMM_TRANSFER_H

#include "python/message/channel.h"

// The arguments of a call of the send or receive family.
typedef struct {
    wm_channel_t channel;
    wm_envelope_t envelope;
    PyObject *buf; // borrowed
    bool receives;
    MPI_Status *status; // NULL: no status is wanted
} wm_transfer_t;

typedef enum {
    WM_STANDARD, // standard and ready
    WM_SYNCHRONOUS,
    WM_BUFFERED,
    WM_RECEIVE,
} wm_mode_t;

// Parses (buf, dest, tag), or (buf, source, tag), and a status if the receive
// is blocking. Returns 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_transfer_read(wm_transfer_t *transfer, const char *function,
                    PyObject *self, PyObject *const *args, Py_ssize_t given,
                    PyObject *keywords, bool blocking, wm_mode_t mode);

// Begins a message whose buffer was parsed. `request`, unless NULL, gets its
// MPI request within the same release of the GIL. Returns NULL with an
// exception: the message is then released, and a receiver that may wait is
// told.
wm_op_t *
wm_py_transfer_begin(const wm_transfer_t *transfer, MPI_Request *request,
                     wm_message_t *message);

// Parses the buffer, called `argument`, of a message that is to begin.
// MPI_PROC_NULL as the rank: the buffer does not matter. Returns 0, or -1 with
// an exception: a receiver that may wait is then told.
WM_MUST_CHECK int
wm_py_transfer_parse(const wm_transfer_t *transfer, int rank,
                     const char *argument, wm_message_t *message);

// Makes an inactive persistent request (persistent.c) on a communicator or
// comm.on(stream). Returns NULL with an exception.
PyObject *
wm_py_persistent_make(PyObject *comm, const wm_transfer_t *transfer);

// Of messages whose stream is being captured into a graph (captured_call.c).
// The first makes a request that is started there. The second starts and waits
// for messages; `apart`: their memory overlaps. Return NULL with an exception.
PyObject *
wm_py_captured_begin(PyObject *comm, const wm_transfer_t *transfer);
PyObject *
wm_py_captured_run(PyObject *comm, const wm_transfer_t *const *transfers,
                   int count, bool apart);

// Defines a call of the send family with its docstring.
#define WM_PY_SEND(name, blocking, mode, finish, what)                        \
    const char wm_py_comm_##name##_doc[] = PyDoc_STR(                         \
        #name "($self, /, buf, dest, tag=0)\n--\n\n" what                     \
              "\n\n" WM_PY_DOC_SENT WM_PY_DOC_RAISES);                        \
                                                                              \
    WM_PY_TRANSFER(name, blocking, mode, finish)

// Defines a call. `finish` is the expression that uses its `transfer`.
#define WM_PY_TRANSFER(name, blocking, mode, finish)                          \
    PyObject *wm_py_comm_##name(PyObject *self, PyObject *const *args,        \
                                Py_ssize_t given, PyObject *keywords)         \
    {                                                                         \
        wm_transfer_t transfer;                                               \
        return wm_py_transfer_read(&transfer, #name, self, args, given,       \
                                   keywords, blocking, mode)                  \
                       < 0                                                    \
                   ? NULL                                                     \
                   : finish;                                                  \
    }

#endif
