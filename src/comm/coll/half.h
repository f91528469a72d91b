// SPDX-License-Identifier: BSD-3-Clause
// float16 and bfloat16 in reductions. MPI computes with neither, or with one
// under a name of its own: it is given datatypes and operations of ours, for
// any ranks, hosts and forms of a call. An operation computes in float32 and
// rounds its result (array/reduce.h). Any thread.
#ifndef WM_COMM_COLL_HALF_H
#define WM_COMM_COLL_HALF_H

#include <mpi.h>
#include <stdbool.h>

#include "array/reduce.h"

// Makes datatypes and operations, once for all; they stay until MPI ends.
// MPI's errors. GIL released by the caller.
WM_MUST_CHECK int
wm_half_prepare(wm_error_t *err);

// MPI's type of WM_REDUCE_FLOAT16 or WM_REDUCE_BFLOAT16, once that is done;
// MPI_DATATYPE_NULL of any other.
MPI_Datatype
wm_half_type(wm_reduce_type_t reduced);

// Whether they have the operation: MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX.
bool
wm_half_has(MPI_Op op);

// What MPI computes an operation by: of such a type ours, else the same.
MPI_Op
wm_half_op(MPI_Datatype type, MPI_Op op);

// As of wm_element_number and wm_element_name, of any type: these two differ.
int64_t
wm_half_number(MPI_Datatype type);

const char *
wm_half_name(int64_t number);

// Whether it is ours, and the kernels' name of it.
bool
wm_half_is(MPI_Datatype type, wm_reduce_type_t *reduced);

#endif
