// SPDX-License-Identifier: BSD-3-Clause
// Requests whose handles the program knows, by handle: it has asked for it, or
// made a copy. mpi4py's own objects, which are a handle alone, find ours here.
// Such a request outlives its object, as MPI's does: what it uses is kept
// until MPI lets go of it. GIL held; may be released.
#ifndef WM_PYTHON_REQUEST_HANDLES_H
#define WM_PYTHON_REQUEST_HANDLES_H

#include "python/request/py_request.h"

// Of what it will be called with: the request behind an object of mpi4py's or
// ours. A new reference, or NULL, without an exception, where it is MPI's own.
PyObject *
wm_py_handles_find(PyObject *object);

// The program asks for the handle, which is base.ob_mpi then. Nothing where
// there is none. 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_handles_show(wm_request_t *self);

// First thing in a deallocator: moves what a request of the table is to an
// object that nobody has; the caller's is empty then.
void
wm_py_handles_adopt(PyObject *object);

// MPI has let go of it, or the program freed it. May end the object: the
// caller has a reference.
void
wm_py_handles_remove(wm_request_t *self);

// Begins all persistent requests that the program has started by MPI itself.
// -1 with the first exception, when all others have begun.
WM_MUST_CHECK int
wm_py_handles_begin_started(void);

// Copies of requests, and of messages, ask for the handle from now on. Once.
WM_MUST_CHECK int
wm_py_handles_watch_copies(void);

#endif
