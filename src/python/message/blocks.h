// SPDX-License-Identifier: BSD-3-Clause
// The blocks of mpi4py's buffers: the counts, displacements and datatypes that
// follow the array in its list, as mpi4py reads them. GIL held.
#ifndef WM_PYTHON_MESSAGE_BLOCKS_H
#define WM_PYTHON_MESSAGE_BLOCKS_H

#include "comm/coll/call/coll_table.h"
#include "python/core/mpi4py.h"

typedef struct {
    Py_ssize_t at;      // bytes from the first of the array
    Py_ssize_t count;   // elements from there on
    PyObject *datatype; // of the elements, borrowed; NULL: as in the array
    MPI_Datatype type;  // its handle; MPI_DATATYPE_NULL: as in the array
} wm_py_block_t;

typedef struct {
    int count;
    wm_py_block_t *blocks;
    PyObject *kept; // the datatypes
} wm_py_blocks_t;

// Reads the blocks of a buffer, an array or a list with one, for `count` ranks
// or neighbors; -1: as many as its lists have. Forms WM_WHOLE and WM_EQUAL
// have one block: all elements. `itemsize` and `nbytes` are those of the
// array. Returns 0, and the caller frees the blocks; or -1 with an exception:
// MPI.Exception for a null datatype. Nothing tells that a block lies within
// the array.
int
wm_py_blocks_read(PyObject *buffer, wm_block_form_t form, int count,
                  Py_ssize_t itemsize, Py_ssize_t nbytes,
                  wm_py_blocks_t *blocks);

void
wm_py_blocks_free(wm_py_blocks_t *blocks);

// Returns true if the list has counts, which the length of the array does not
// replace.
bool
wm_py_blocks_has_counts(PyObject *buffer, wm_block_form_t form);

// Returns a buffer that counts one block as a buffer that counts all blocks. A
// count that is wrong stays as it is. A new reference; NULL with an exception.
PyObject *
wm_py_blocks_of_all(PyObject *buffer, int blocks);

// Returns the form that is called "", "n", "v" or "w" in Python.
wm_block_form_t
wm_py_blocks_form(const char *name);

#endif
