// SPDX-License-Identifier: BSD-3-Clause
// Messages as mpi4py reads them: host memory whose elements have no dtype of
// ours (long double, structures, text), and mpi4py's errors for arrays that
// nobody can send. GIL held.
#ifndef WM_PYTHON_MESSAGE_RAW_H
#define WM_PYTHON_MESSAGE_RAW_H

#include <stdbool.h>

#include "python/core/module.h"

// Reads the array's bytes, by any protocol, in any memory: the address is not
// checked. If `datatype` is NULL, *found becomes that of the elements, a new
// reference, or NULL for bytes. Returns 0, and the caller releases `raw`; or
// -1, perhaps with an exception: always if the program's own code raised it.
int
wm_py_raw_read(PyObject *array, PyObject *datatype, bool writable,
               Py_buffer *raw, PyObject **found);

// Returns true if the bytes are a copy that a DLPack producer made: mpi4py
// asks for the object's own memory, and ignores whether it gets this.
bool
wm_py_raw_is_copy(const Py_buffer *raw);

// Returns 1 if mpi4py, without a datatype, takes an array's elements for bytes
// because it has no type for them; else 0. With the buffer protocol it has
// one, or raises. Returns -1 with the exception of the program's own code.
int
wm_py_raw_is_bytes(PyObject *array);

// Called with the exception set for a message whose array was refused. If
// mpi4py cannot read the array either, the exception gets the class that
// mpi4py raises, and keeps its text: programs that catch mpi4py's exceptions
// catch ours.
void
wm_py_raw_judge(PyObject *array, bool writable);

#endif
