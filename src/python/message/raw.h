// SPDX-License-Identifier: BSD-3-Clause
// Messages as mpi4py itself reads them: host memory whose elements have no
// dtype of ours (long double, structures, text), and what mpi4py says of what
// nobody can send. GIL held.
#ifndef WM_PYTHON_MESSAGE_RAW_H
#define WM_PYTHON_MESSAGE_RAW_H

#include <stdbool.h>

#include "python/core/module.h"

// The array's bytes, by whatever protocol it speaks, on whatever memory: the
// address is not looked at. `datatype` NULL: *found is that of the elements, a
// new reference, or NULL where they are bytes. 0, `raw` then to be released;
// -1, perhaps with an exception.
int
wm_py_raw_read(PyObject *array, PyObject *datatype, bool writable,
               Py_buffer *raw, PyObject **found);

// Returns true if the bytes are a copy that a DLPack producer made: mpi4py
// asks for the object's own memory, and does not look at the answer.
bool
wm_py_raw_is_copy(const Py_buffer *raw);

// Whether mpi4py, which is given no datatype, takes an array's elements for
// bytes as it has no type for them. Of the buffer protocol it has, or raises.
bool
wm_py_raw_is_bytes(PyObject *array);

// With an exception set, of a message of an array that was refused: where
// mpi4py cannot read the array either, the exception becomes one of the class
// that mpi4py raises, with the text it has. Programs that catch mpi4py's catch
// ours.
void
wm_py_raw_judge(PyObject *array, bool writable);

#endif
