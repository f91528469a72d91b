// SPDX-License-Identifier: BSD-3-Clause
// Attempts to make a call of MPI's: has MPI made the call, or has the call
// been refused? A call is refused by an exception before MPI's function, or by
// an error of MPI's about its arguments. A refused call has not happened. An
// attempt by Python code is noted for the thread, by _attempting(). GIL held.
#ifndef WM_PYTHON_COMM_ATTEMPT_H
#define WM_PYTHON_COMM_ATTEMPT_H

#include "python/core/module.h"

// Returns true if the exception that is set, of our reading the arguments,
// ends the call: MPI would refuse it, or the arguments' own code raised it.
// Else drops the exception: MPI, or mpi4py, reads the arguments as well, and
// reports what is wrong.
bool
wm_py_attempt_is_over(void);

// Begins an attempt within another one. Returns the state of the other one,
// for wm_py_attempt_end().
bool
wm_py_attempt_begin(void);

// Returns true if mpi4py's method, of which this is the result, or NULL with
// an exception, has made MPI's call. The exception stays.
bool
wm_py_attempt_is_made(const PyObject *result);

// Ends the attempt. Returns true if MPI has made the call.
bool
wm_py_attempt_end(bool outer);

#endif
