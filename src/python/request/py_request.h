// SPDX-License-Identifier: BSD-3-Clause
// wm.Request: an MPI.Request with fast Wait and Test of its own. GIL held;
// released while waiting.
#ifndef WM_PYTHON_REQUEST_PY_REQUEST_H
#define WM_PYTHON_REQUEST_PY_REQUEST_H

#include <stdbool.h>

#include "comm/engine/handle.h"
#include "comm/message/p2p.h"
#include "python/message/specification.h"

#include <mpi4py/mpi4py.h>

// Only the layout of mpi4py's header is used here.
typedef struct wm_request {
    PyMPIRequestObject base;
    wm_op_t *op; // NULL once it has ended and was reported
    wm_message_t message;
    PyObject *payload; // object that an irecv received, until reported
    // For a persistent request whose handle the program has asked for: the
    // handle stays the same, active or not. NULL: the handle is that of the
    // operation under way, or null.
    wm_handle_t *handle;
    MPI_Request lent; // the operation's own request, while MPI is asked
    // Private to handles.c.
    struct wm_request *next;
    MPI_Request key;
    bool known;    // the program has asked for the handle
    bool in_graph; // a persistent one: started in a capture
    bool adopted;  // the object is gone
} wm_request_t;

// Makes a request for an operation (takes over the reference), with its MPI
// request, or null if it has none yet, and the rest of its message (moved).
// Returns NULL with an exception.
PyObject *
wm_py_request_new(wm_op_t *op, MPI_Request handle, wm_message_t *message);

// Calls MPI_Request_free without the GIL, unless the request is null, or MPI
// has ended.
void
wm_py_request_free(MPI_Request request);

// Returns true if the request has an operation under way or not yet reported,
// and MPI has not completed the request: nobody has waited for it by its
// handle.
bool
wm_py_request_is_active(const wm_request_t *self);

// Makes a persistent request active: takes over `op` and its MPI request,
// which is null if there is none yet. Returns 0, or -1 with an exception: the
// request is active nevertheless.
WM_MUST_CHECK int
wm_py_request_begun(wm_request_t *self, wm_op_t *op, MPI_Request handle);

// Do the same in two steps: without the GIL, and then, with the GIL, on the
// object.
WM_MUST_CHECK int
wm_py_request_begin_unlocked(wm_request_t *self, wm_op_t *op,
                             MPI_Request *handle, wm_error_t *err);
void
wm_py_request_set(wm_request_t *self, wm_op_t *op, MPI_Request handle);

// Drops the operation, which completes by itself if it has not ended, and the
// message.
void
wm_py_request_forget(wm_request_t *self);

// Called around an MPI call that is given the request: they set the handle
// that MPI gets, and take over the result.
void
wm_py_request_lend(wm_request_t *self);
void
wm_py_request_take_back(wm_request_t *self);

// Called after the operation has ended: MPI frees its request, Python frees
// the buffers.
void
wm_py_request_retire(wm_request_t *self);

// The two halves of this: take what is to be freed out of the request; then
// let MPI free the requests and drop the operations, all at once.
typedef struct {
    wm_op_t *op;        // NULL: none
    MPI_Request handle; // null: none
} wm_ended_t;

wm_ended_t
wm_py_request_take_ended(wm_request_t *self);

void
wm_py_end_requests(wm_ended_t *ended, int count);

// For types derived from wm.Request.
void
wm_py_request_dealloc(PyObject *object);
int
wm_py_request_traverse(PyObject *object, visitproc visit, void *arg);
int
wm_py_request_clear(PyObject *object);

PyObject *
wm_py_request_repr(PyObject *object);

// Waits for an operation with the GIL released, fills `status` unless NULL,
// and raises errors. Returns 0 or -1.
int
wm_py_wait(wm_op_t *op, MPI_Status *status);

// The two halves of this: the wait, without the GIL, and the result, with it.
WM_MUST_CHECK int
wm_py_wait_unlocked(wm_op_t *op, MPI_Status *status, wm_error_t *err);

// Asked by such waits, without the GIL: returns true, with an exception, if a
// signal's handler has raised.
bool
wm_py_interrupted(wm_op_t *op);

int
wm_py_waited(int code, wm_error_t *err);

#endif
