// SPDX-License-Identifier: BSD-3-Clause
// Elements that MPI cannot compute with, and would reduce as bytes. GIL held.
#ifndef WM_PYTHON_COMM_REDUCED_H
#define WM_PYTHON_COMM_REDUCED_H

#include "python/message/specification.h"

// Returns true if MPI would reduce the elements as bytes, although they were
// not given as bytes.
bool
wm_py_reduced_is_bytes(const wm_message_t *message);

// Returns -1 with a TypeError naming `argument` if a buffer of a reduction
// names no datatype and MPI has none for its elements (float8 and similar; for
// Accumulate and its like also bfloat16); or with the exception of the array's
// own code. Else returns 0.
int
wm_py_reduced_refuse_bytes(PyObject *object, const char *argument);

// Gives a message our datatype if its elements are float16 or bfloat16 and MPI
// may be asked for `op` of them. Returns 0, or -1 with an exception.
int
wm_py_reduced_name(wm_message_t *message, MPI_Op op);

#endif
