// SPDX-License-Identifier: BSD-3-Clause
// MPI's datatypes and operations that kernels reduce, and the kernels' names
// of them. Elements that MPI alone reduces, such as long double, have numbers
// from WM_REDUCE_TYPES on, which are the same on all ranks. Any thread.
#ifndef WM_COMM_COLL_CALL_REDUCIBLE_H
#define WM_COMM_COLL_CALL_REDUCIBLE_H

#include <mpi.h>
#include <stdbool.h>

#include "array/reduce.h"
#include "cuda/error.h"

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

// Sets the number of a datatype's elements, those of MPI alone included.
// Returns false if no operation takes them.
bool
wm_reducible_element(MPI_Datatype type, wm_reduce_type_t *number);

// Returns true if MPI has the operation for elements of a number, which may be
// any that another rank has sent.
bool
wm_reducible_takes(unsigned type, unsigned op);

// Returns the bytes of an element that wm_reducible_takes() takes.
size_t
wm_reducible_size(unsigned type);

// Reduces host memory: dst = src op dst, at addresses that suit the type.
WM_MUST_CHECK int
wm_reducible_reduce(unsigned type, wm_reduce_op_t op, void *dst,
                    const void *src, size_t count, wm_error_t *err);

// Returns the name of an element type, by its number, which may be any that
// another rank has published, or by MPI's datatype; borrowed, static.
const char *
wm_reducible_type_name(unsigned type);
const char *
wm_reducible_name_of(MPI_Datatype type);

#endif
