// SPDX-License-Identifier: BSD-3-Clause
// wm.Message: a message that a matching probe has found; only its own Recv and
// Irecv receive it. GIL held; released while waiting.
#ifndef WM_PYTHON_COMM_MATCHED_H
#define WM_PYTHON_COMM_MATCHED_H

#include "comm/message/p2p.h"
#include "python/core/module.h"

// Makes a message object of a communicator (its object) for the message that a
// matching probe's operation holds; for PROC_NULL like MPI.MESSAGE_NO_PROC.
// Returns NULL with an exception: the message then goes back.
PyObject *
wm_py_matched_new(PyObject *comm, wm_op_t *op);

// Returns true if the object is a matched message that was not received yet.
bool
wm_py_matched_is_full(PyObject *message);

// Returns -1 with MPI.Exception for a null message, as a received one is: MPI
// would end the program that receives it.
int
wm_py_matched_refuse_null(PyObject *message);

// Begins to receive the message; takes over `buffer`. Returns -1 with an
// exception: the message can then be received again.
int
wm_py_matched_begin(PyObject *message, wm_buffer_t *buffer, bool blocking,
                    wm_op_t **op);

// Returns the message's communicator, which is valid until
// wm_py_matched_let_go(). The caller that begins to receive the message lets
// go once its operation holds the communicator.
wm_comm_t *
wm_py_matched_comm(PyObject *message);

// Drops the message's reference to its communicator.
void
wm_py_matched_let_go(PyObject *message);

#endif
