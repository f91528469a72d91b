// SPDX-License-Identifier: BSD-3-Clause
// wm.Message: a message that a matching probe has found, which only its own
// Recv and Irecv receive. GIL held; released while waiting.
#ifndef WM_PYTHON_COMM_MATCHED_H
#define WM_PYTHON_COMM_MATCHED_H

#include "comm/message/p2p.h"
#include "python/core/module.h"

// A new message of a communicator (its object), for what a matching probe's
// operation holds; for one of PROC_NULL that of MPI.MESSAGE_NO_PROC. NULL with
// an exception: the message then goes back.
PyObject *
wm_py_matched_new(PyObject *comm, wm_op_t *op);

// Whether the object is such a message, and not received yet.
bool
wm_py_matched_is_full(PyObject *message);

// -1 with MPI.Exception where it is a null message, as one that was received
// is: MPI ends the program that receives it.
int
wm_py_matched_refuse_null(PyObject *message);

// Begins to receive it; takes over `buffer`. -1 with an exception: it can be
// received once more.
int
wm_py_matched_begin(PyObject *message, wm_buffer_t *buffer, bool blocking,
                    wm_op_t **op);

// Its communicator, which is there until the message has been let go of: by
// who has begun to receive it, and has a hold on the operation's own.
wm_comm_t *
wm_py_matched_comm(PyObject *message);

void
wm_py_matched_let_go(PyObject *message);

#endif
