// SPDX-License-Identifier: BSD-3-Clause
// What kernels reduce of MPI's: their names of its datatypes and operations.
// Any thread.
#ifndef WM_COMM_COLL_REDUCIBLE_H
#define WM_COMM_COLL_REDUCIBLE_H

#include <mpi.h>
#include <stdbool.h>

#include "array/reduce.h"

// The number of the kernels' operation, or WM_REDUCE_OPS for any other.
int
wm_reducible_op(MPI_Op op);

// Returns whether MPI has the operation, or a program's own, for collectives:
// not MPI_OP_NULL, nor those of windows.
bool
wm_reducible_reduces(MPI_Op op);

// The kernels' names of a type of theirs or of any other, whose elements have
// `size` bytes, and of the operation; false where they have none.
bool
wm_reducible(MPI_Datatype type, size_t size, MPI_Op op, wm_reduce_type_t *kind,
             wm_reduce_op_t *by);

#endif
