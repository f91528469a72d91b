// SPDX-License-Identifier: BSD-3-Clause
// wm.Request: an MPI.Request whose own Wait and Test are the fast path. GIL
// held; released while waiting.
#ifndef WM_PYTHON_REQUEST_PY_REQUEST_H
#define WM_PYTHON_REQUEST_PY_REQUEST_H

#include <stdbool.h>

#include "comm/engine/handle.h"
#include "comm/message/p2p.h"
#include "python/message/specification.h"

#include <mpi4py/mpi4py.h>

// Of mpi4py's header only the layout is used here.
typedef struct wm_request {
    PyMPIRequestObject base;
    wm_op_t *op; // NULL once it has ended and was told
    wm_message_t message;
    PyObject *payload; // of an irecv: what it received, until it was told
    // Of a persistent one whose handle the program has asked for: that stays
    // the same, active or not. NULL: the handle is that of the operation under
    // way, and else null.
    wm_handle_t *handle;
    MPI_Request lent; // that of the operation nevertheless, while MPI is asked
    // For handles.c.
    struct wm_request *next;
    MPI_Request key;
    bool known;   // the program has asked for the handle
    bool adopted; // its object is gone
} wm_request_t;

// A new request for an operation (takes over the reference), with its MPI
// request, which null stands for where it has none yet, and the rest of its
// message (moved). NULL with an exception.
PyObject *
wm_py_request_new(wm_op_t *op, MPI_Request handle, wm_message_t *message);

// Gives an operation its MPI request: wm_request_start without the GIL. Who is
// in MPI, or has the engine's lock, may wait for the GIL (a reduction by a
// function written in Python): MPI is called without it.
WM_MUST_CHECK int
wm_py_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err);

// MPI_Request_free without the GIL, unless null, or MPI runs no more.
void
wm_py_request_free(MPI_Request request);

// Whether there is an operation under way or not yet told, and MPI has not let
// go of it: nobody has waited for it by its handle.
bool
wm_py_request_is_active(const wm_request_t *self);

// The handle while there is none.
MPI_Request
wm_py_request_inactive(const wm_request_t *self);

// A persistent one has begun: `op` is taken over, and its MPI request, or null
// where it has none. -1 with an exception: it has begun all the same.
WM_MUST_CHECK int
wm_py_request_begun(wm_request_t *self, wm_op_t *op, MPI_Request handle);

// The same without the GIL; then, with it, what of its object is to be set.
WM_MUST_CHECK int
wm_py_request_begin_unlocked(wm_request_t *self, wm_op_t *op,
                             MPI_Request *handle, wm_error_t *err);
void
wm_py_request_set(wm_request_t *self, wm_op_t *op, MPI_Request handle);

// Lets go of an operation, which ends by itself if it has not, and of its
// message.
void
wm_py_request_forget(wm_request_t *self);

// Around a call of MPI's that is given the request: what MPI is to have for
// it, and what has become of that.
void
wm_py_request_lend(wm_request_t *self);
void
wm_py_request_take_back(wm_request_t *self);

// After the operation has ended: MPI frees its request, Python the buffers.
void
wm_py_request_retire(wm_request_t *self);

// Its two halves: what is to be let go of, and that MPI frees the requests and
// the operations go, all at once.
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

// Waits for an operation with the GIL released, fills `status` unless NULL,
// raises what went wrong. 0 or -1.
int
wm_py_wait(wm_op_t *op, MPI_Status *status);

// Its two halves: the waiting, without the GIL, and what it gave, with it.
WM_MUST_CHECK int
wm_py_wait_unlocked(wm_op_t *op, MPI_Status *status, wm_error_t *err);

int
wm_py_waited(int code, wm_error_t *err);

#endif
