// SPDX-License-Identifier: BSD-3-Clause
// float16 and bfloat16 in reductions. MPI has neither type, or under a name of
// its own. So we give MPI datatypes and operations of ours, which work for all
// ranks, hosts and forms of a call. An operation computes in float32 and
// rounds its result (array/reduce.h). Any thread.
#ifndef WM_COMM_COLL_CALL_HALF_H
#define WM_COMM_COLL_CALL_HALF_H

#include <mpi.h>
#include <stdbool.h>

#include "array/reduce.h"

// Makes the datatypes and operations once; they stay until MPI ends. Returns
// MPI's errors. GIL released by the caller.
WM_MUST_CHECK int
wm_half_prepare(wm_error_t *err);

// Returns the datatype of WM_REDUCE_FLOAT16 or WM_REDUCE_BFLOAT16 after
// wm_half_prepare(); MPI_DATATYPE_NULL for any other.
MPI_Datatype
wm_half_type(wm_reduce_type_t reduced);

// Returns true for the operations that they have: MPI_SUM, MPI_PROD, MPI_MIN,
// MPI_MAX.
bool
wm_half_has(MPI_Op op);

// Returns the operation to give to MPI: ours for such a type, else `op`.
MPI_Op
wm_half_op(MPI_Datatype type, MPI_Op op);

// Like wm_element_number() and wm_element_name(), for all types; these two
// have numbers of their own.
int64_t
wm_half_number(MPI_Datatype type);

const char *
wm_half_name(int64_t number);

// Returns true if `type` is one of ours; *reduced is the kernels' name of it.
bool
wm_half_is(MPI_Datatype type, wm_reduce_type_t *reduced);

#endif
