// SPDX-License-Identifier: BSD-3-Clause
// MPI's datatypes and operations that kernels reduce, and the kernels' names
// of them. Any thread.
#ifndef WM_COMM_COLL_CALL_REDUCIBLE_H
#define WM_COMM_COLL_CALL_REDUCIBLE_H

#include <mpi.h>
#include <stdbool.h>

#include "array/reduce.h"

// Returns the number of the kernels' operation, or WM_REDUCE_OPS if there is
// none.
int
wm_reducible_op(MPI_Op op);

// Returns true for operations that collectives accept, also user-defined ones:
// not MPI_OP_NULL, MPI_REPLACE or MPI_NO_OP.
bool
wm_reducible_reduces(MPI_Op op);

// Sets the kernels' names of a datatype, whose elements have `size` bytes, and
// of the operation. Returns false if there are none.
bool
wm_reducible(MPI_Datatype type, size_t size, MPI_Op op,
             wm_reduce_type_t *kernel_type, wm_reduce_op_t *kernel_op);

// Returns the name of an element type, by the kernels' number, which may be
// any that another rank has published, or by MPI's datatype; borrowed, static.
const char *
wm_reducible_type_name(unsigned type);
const char *
wm_reducible_name_of(MPI_Datatype type);

#endif
