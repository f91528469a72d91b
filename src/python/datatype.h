// SPDX-License-Identifier: BSD-3-Clause
// MPI's datatypes, as far as messages of bytes must know them. GIL held.
#ifndef WM_PYTHON_DATATYPE_H
#define WM_PYTHON_DATATYPE_H

#include <mpi.h>

#include "array/dtype.h"
#include "python/module.h"

// The MPI type of an element type; MPI_DATATYPE_NULL where MPI has none.
MPI_Datatype
wm_datatype_of(wm_dtype_t dtype);

// Whether elements of the type lie in memory as they travel: without gaps,
// and in order. Types that name a place for each block are not looked into.
bool
wm_datatype_is_dense(MPI_Datatype type);

#endif
