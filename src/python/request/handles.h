// SPDX-License-Identifier: BSD-3-Clause
// Requests whose handles the program knows, by handle: it asked for the
// handle, or copied the request. mpi4py's own objects, which are only a
// handle, find our request here. Such a request outlives its object, as MPI's
// does: it keeps what it uses until MPI completes it. GIL held; may be
// released.
#ifndef WM_PYTHON_REQUEST_HANDLES_H
#define WM_PYTHON_REQUEST_HANDLES_H

#include "python/request/py_request.h"

// Returns true if the handle still belongs to this request.
bool
wm_py_handles_is_live(const wm_request_t *self);

// Finds the request behind an object of mpi4py's or ours, on which a method is
// to be called. Returns a new reference, or NULL, without an exception, for a
// request of MPI's own.
PyObject *
wm_py_handles_find(PyObject *object);

// Called when the program asks for the handle: makes base.ob_mpi a handle that
// the table knows. Does nothing if the request is not live. Returns 0, or -1
// with an exception.
WM_MUST_CHECK int
wm_py_handles_show(wm_request_t *self);

// Called first in a deallocator: moves the contents of a request of the table
// into a new object that the table owns; the caller's object is empty then.
void
wm_py_handles_adopt(PyObject *object);

// Removes a request that MPI has completed, or the program has freed. May end
// the object: the caller has a reference.
void
wm_py_handles_remove(wm_request_t *self);

// Begins all persistent requests that the program has started by MPI itself.
// Returns 0, or -1 with the first exception, after all others have begun.
WM_MUST_CHECK int
wm_py_handles_begin_started(void);

// Returns the matched message of ours, which has no handle, that an object is,
// or is a copy of; borrowed. NULL, without an exception, for messages of MPI's
// own, for other objects, and for the message of no process.
PyObject *
wm_py_handles_message(PyObject *object);

// Makes copies of requests, and of messages, act as the original does. Called
// once. Returns 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_handles_watch_copies(void);

#endif
