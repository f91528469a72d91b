// SPDX-License-Identifier: BSD-3-Clause
// Elements that MPI cannot compute with, and would take for mere bytes. GIL
// held.
#ifndef WM_PYTHON_COMM_REDUCED_H
#define WM_PYTHON_COMM_REDUCED_H

#include "python/message/specification.h"

// Whether a buffer of a reduction is GPU memory: 1 or 0; -1 with a TypeError
// naming `argument` where its elements, whose type is not given, are none of
// MPI's: bfloat16, float8 and their like, in whatever memory.
int
wm_py_reduced_on_device(PyObject *object, const char *argument);

// Whether MPI would take the elements for bytes, which they were not given as.
bool
wm_py_reduced_is_bytes(const wm_message_t *message);

// Makes a message's type ours where its elements are float16 or bfloat16 and
// MPI may be asked for `op` of them: 0, or -1 with an exception.
int
wm_py_reduced_name(wm_message_t *message, MPI_Op op);

#endif
